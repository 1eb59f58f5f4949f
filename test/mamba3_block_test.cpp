// The Mamba-3 block on every executor: the laws of spec 40 sections 5 and 6, and gradients of nothing.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "mamba3_blocks.h"
#include "samba/core/error.h"

namespace samba {
namespace {

using namespace mamba3_blocks;

void set_piece(Mamba3State& state, Mamba3Piece which, const Floats& values) {
  const ConstArray array{DType::float32, state.piece_shape(which), values.data()};
  state.set({{std::string(Mamba3State::piece_name(which)), array}}, {});
}

}  // namespace

TEST_CASE("Decoding token by token gives the bits of the prefill, across chunks") {
  for (const Device& device : devices()) {
    INFO(device.name << " " << device.options.instruction_set);
    Fixture f(device);
    constexpr Index kLength = 130;
    const Floats x = draw(100, kLength * kModel, 0.0F, 1.0F);
    const Floats whole = f.forward(1, kLength, x, nullptr);
    auto state = f.state(1);
    auto prefilled = f.state(1);
    f.forward(1, kLength, x, prefilled.get());
    for (Index t = 0; t < kLength; ++t) {
      INFO("token " << t);
      const Floats y = f.forward(1, 1, tokens(x, 1, t, t + 1), state.get());
      REQUIRE(bits_equal(y, tokens(whole, 1, t, t + 1)));
    }
    CHECK(state->buffered_tokens() == 2);
    CHECK(bits_equal(piece(*state, "theta"), piece(*prefilled, "theta")));
    CHECK(bits_equal(piece(*state, "h"), piece(*prefilled, "h")));
  }
}

TEST_CASE("Every shorter sequence is a prefix of a longer one") {
  for (const Device& device : devices()) {
    INFO(device.name << " " << device.options.instruction_set);
    Fixture f(device);
    const Floats x = draw(101, 130 * kModel, 0.0F, 1.0F);
    const Floats whole = f.forward(1, 130, x, nullptr);
    for (Index length = 1; length <= 130; ++length) {
      INFO("length " << length);
      REQUIRE(bits_equal(f.forward(1, length, tokens(x, 1, 0, length), nullptr), tokens(whole, 1, 0, length)));
    }
  }
}

TEST_CASE("A sequence may be cut into calls anywhere") {
  const std::vector<std::vector<Index>> splits = {{1, 63, 1, 65}, {64, 64, 2}, {63, 2, 65}, {100, 30}, {5, 120, 5}};
  for (const Device& device : devices()) {
    INFO(device.name << " " << device.options.instruction_set);
    Fixture f(device);
    constexpr Index kBatch = 2;
    const Floats x = draw(102, kBatch * 130 * kModel, 0.0F, 1.0F);
    const Floats whole = f.forward(kBatch, 130, x, nullptr);
    for (const std::vector<Index>& split : splits) {
      auto state = f.state(kBatch);
      Index first = 0;
      for (const Index length : split) {
        INFO("tokens " << first << " to " << first + length);
        const Floats y = f.forward(kBatch, length, tokens(x, kBatch, first, first + length), state.get());
        CHECK(bits_equal(y, tokens(whole, kBatch, first, first + length)));
        first += length;
      }
    }
  }
}

TEST_CASE("The state after the last call does not depend on the cuts, stale rows apart") {
  for (const Device& device : devices()) {
    INFO(device.name << " " << device.options.instruction_set);
    Fixture f(device);
    const Floats x = draw(103, 70 * kModel, 0.0F, 1.0F);
    auto parts = f.state(1);
    f.forward(1, 40, tokens(x, 1, 0, 40), parts.get());
    f.forward(1, 24, tokens(x, 1, 40, 64), parts.get());
    auto at_once = f.state(1);
    f.forward(1, 64, tokens(x, 1, 0, 64), at_once.get());
    check_same_states(*parts, *at_once);
  }
}

TEST_CASE("A batch row alone has the bits it has in the batch") {
  for (const Device& device : devices()) {
    INFO(device.name << " " << device.options.instruction_set);
    Fixture f(device);
    constexpr Index kBatch = 3, kLength = 70;
    const Floats x = draw(104, kBatch * kLength * kModel, 0.0F, 1.0F);
    const Floats together = f.forward(kBatch, kLength, x, nullptr);
    for (Index b = 0; b < kBatch; ++b) {
      const auto row = [&](const Floats& all) {
        return Floats(all.begin() + b * kLength * kModel, all.begin() + (b + 1) * kLength * kModel);
      };
      CHECK(bits_equal(f.forward(1, kLength, row(x), nullptr), row(together)));
    }
  }
}

TEST_CASE("Buffer rows behind the last chunk keep their bytes") {
  for (const Device& device : devices()) {
    INFO(device.name << " " << device.options.instruction_set);
    Fixture f(device);
    auto state = f.state(1);
    const Floats x = draw(105, 66 * kModel, 0.0F, 1.0F);
    f.forward(1, 64, tokens(x, 1, 0, 64), state.get());
    const ArrayMap before = state->pieces();
    f.forward(1, 2, tokens(x, 1, 64, 66), state.get());
    REQUIRE(state->buffered_tokens() == 2);
    const ArrayMap after = state->pieces();
    for (const auto& [piece_name, array] : after) {
      if (piece_name.rfind("buffer_", 0) != 0) continue;
      INFO(piece_name);
      const auto row = static_cast<std::size_t>(array.size() / 64);
      CHECK(bits_equal(array.floats().subspan(2 * row), before.at(piece_name).floats().subspan(2 * row)));
      CHECK_FALSE(std::ranges::equal(array.floats().first(row), before.at(piece_name).floats().first(row)));
    }
  }
}

TEST_CASE("A caller's subnormal in a piece that is only copied survives and reads as zero") {
  const float planted = from_bits(0x80000123U);
  for (const Device& device : devices()) {
    INFO(device.name << " " << device.options.instruction_set);
    Fixture f(device);
    const Floats x = draw(106, 80 * kModel, 0.0F, 1.0F);
    const Floats first = tokens(x, 1, 0, 10), next = tokens(x, 1, 10, 20), last = tokens(x, 1, 20, 80);
    for (const Mamba3Piece which :
         {Mamba3Piece::h, Mamba3Piece::buffer_qrot, Mamba3Piece::buffer_krot, Mamba3Piece::buffer_v,
          Mamba3Piece::buffer_dt, Mamba3Piece::buffer_sig, Mamba3Piece::buffer_adt}) {
      const std::string piece_name(Mamba3State::piece_name(which));
      INFO(piece_name);
      auto state = f.state(1);
      auto zeroed = f.state(1);
      f.forward(1, 10, first, state.get());
      f.forward(1, 10, first, zeroed.get());
      Floats values = piece(*state, piece_name);
      values[0] = planted;
      set_piece(*state, which, values);
      values[0] = -0.0F;
      set_piece(*zeroed, which, values);

      CHECK(bits_equal(f.forward(1, 10, next, state.get()), f.forward(1, 10, next, zeroed.get())));
      CHECK(to_bits(piece(*state, piece_name)[0]) == to_bits(planted));
      CHECK(bits_equal(f.forward(1, 60, last, state.get()), f.forward(1, 60, last, zeroed.get())));
      CHECK(bits_equal(piece(*state, "h"), piece(*zeroed, "h")));
    }
  }
}

TEST_CASE("Input states are added once, and a later set in mid-sequence is refused") {
  for (const Device& device : devices()) {
    INFO(device.name << " " << device.options.instruction_set);
    Fixture f(device);
    auto state = f.state(1);
    const auto drawn = [&](std::uint32_t stream, Mamba3Piece like) {
      const Shape shape = state->piece_shape(like);
      return Array::from_floats(shape, draw(stream, element_count(shape), 0.0F, 0.5F));
    };
    const Array theta = drawn(200, Mamba3Piece::theta), h = drawn(201, Mamba3Piece::h);
    const Array k = drawn(202, Mamba3Piece::pending_k), v = drawn(203, Mamba3Piece::pending_v);
    state->set_input_states(theta, h, k, v);
    CHECK(state->pending());
    const Floats x = draw(107, 3 * kModel, 0.0F, 1.0F);
    CHECK_FALSE(std::ranges::equal(f.forward(1, 3, x, state.get()), f.forward(1, 3, x, nullptr)));
    CHECK_FALSE(state->pending());
    for (const float value : piece(*state, "pending_k")) REQUIRE(to_bits(value) == 0U);
    for (const float value : piece(*state, "pending_v")) REQUIRE(to_bits(value) == 0U);

    // h + (v k^T) c with the first token's c                                     spec 40 section 3.10
    const float dt = piece(*state, "buffer_dt")[0], sigma = piece(*state, "buffer_sig")[0];
    const float c = mul(dt, sub(1.0F, sigma));
    Floats wanted;
    for (std::size_t i = 0; i < h.floats().size(); ++i) {
      const std::size_t head = i / (64 * 128), p = i / 128 % 64, n = i % 128;
      wanted.push_back(add(h.floats()[i], mul(mul(v.floats()[head * 64 + p], k.floats()[head * 128 + n]), c)));
    }
    CHECK(bits_equal(piece(*state, "h"), wanted));

    state->set_input_states(theta, h, k, v);
    const Floats before = piece(*state, "buffer_krot");
    CHECK_THROWS_WITH(f.forward(1, 3, x, state.get()),
                      Catch::Contains("set_input_states") && Catch::Contains("mid-sequence") && Catch::Contains("3"));
    CHECK(bits_equal(piece(*state, "buffer_krot"), before));
    CHECK_THROWS_WITH(state->set_input_states(k, h, k, v), Catch::Contains("theta") && Catch::Contains("(1, 1, 32)"));
  }
}

TEST_CASE("Reports are made when asked for, and describe the last token") {
  for (const Device& device : devices()) {
    INFO(device.name << " " << device.options.instruction_set);
    Fixture f(device);
    constexpr Index kBatch = 2;
    const Floats x = draw(108, kBatch * 70 * kModel, 0.0F, 1.0F);
    auto state = f.state(kBatch);
    f.forward(kBatch, 65, tokens(x, kBatch, 0, 65), state.get());
    CHECK(f.block.reports().empty());
    f.block.set_reports(true);
    f.forward(kBatch, 5, tokens(x, kBatch, 65, 70), state.get());
    const ArrayMap stepped = f.block.reports();
    CHECK(bits_equal(stepped.at("theta_last").floats(), piece(*state, "theta")));
    f.forward(kBatch, 70, x, nullptr);
    const ArrayMap whole = f.block.reports();
    REQUIRE(whole.size() == 4);
    for (const auto& [report, array] : whole) {
      INFO(report);
      CHECK(bits_equal(stepped.at(report).floats(), array.floats()));
    }
  }
}

TEST_CASE("A zero gradient has zero gradients, and backward may write over it") {
  for (const Device& device : devices()) {
    INFO(device.name << " " << device.options.instruction_set);
    Fixture f(device);
    constexpr Index kBatch = 2, kLength = 66;
    const Floats x = draw(109, kBatch * kLength * kModel, 0.0F, 1.0F);
    std::vector<Floats> gradients;
    std::vector<float*> pointers;
    for (const WeightSpec& spec : f.block.weight_specs()) {
      gradients.emplace_back(static_cast<std::size_t>(element_count(spec.shape)), 7.0F);
    }
    for (Floats& gradient : gradients) pointers.push_back(gradient.data());
    Floats dx(x.size(), 0.0F);
    f.block.backward(kBatch, kLength, x.data(), dx.data(), dx.data(), pointers, f.workspace, nullptr);
    CHECK(std::ranges::all_of(dx, [](float value) { return value == 0.0F; }));
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      INFO(f.block.weight_specs()[i].name);
      CHECK(std::ranges::all_of(gradients[i], [](float value) { return value == 0.0F; }));
    }

    const Floats dy = draw(110, kBatch * kLength * kModel, 0.0F, 1.0F);
    Floats apart(x.size()), over = dy;
    f.block.backward(kBatch, kLength, x.data(), dy.data(), apart.data(), pointers, f.workspace, nullptr);
    const std::vector<Floats> expected = gradients;
    f.block.backward(kBatch, kLength, x.data(), over.data(), over.data(), pointers, f.workspace, nullptr);
    CHECK(bits_equal(over, apart));
    for (std::size_t i = 0; i < gradients.size(); ++i) CHECK(bits_equal(gradients[i], expected[i]));
  }
}

TEST_CASE("A second pass of the same shape takes no more memory") {
  for (const Device& device : devices()) {
    INFO(device.name << " " << device.options.instruction_set);
    Fixture f(device);
    const Floats x = draw(111, 70 * kModel, 0.0F, 1.0F);
    auto state = f.state(1);
    f.forward(1, 64, tokens(x, 1, 0, 64), state.get());
    f.forward(1, 1, tokens(x, 1, 64, 65), state.get());
    const std::size_t reserved = f.workspace.reserved_bytes();
    for (Index t = 65; t < 70; ++t) f.forward(1, 1, tokens(x, 1, t, t + 1), state.get());
    CHECK(f.workspace.reserved_bytes() == reserved);
  }
}

TEST_CASE("Wrong sizes and counters are refused with their names and numbers") {
  auto executor = make_executor("reference");
  CHECK_THROWS_WITH(Mamba3Block(*executor, 48), Catch::Contains("d_model") && Catch::Contains("48"));
  CHECK_THROWS_WITH(Mamba3Block(*executor, 0), Catch::Contains("d_model"));
  Fixture f;
  CHECK_THROWS_WITH(f.block.allocate_state(0, 0), Catch::Contains("batch_size") && Catch::Contains("0"));
  auto state = f.state(2);
  state->set({}, {{"buffered_tokens", 65}});
  CHECK_THROWS_WITH(f.block.check_call(state.get(), 1), Catch::Contains("buffered_tokens") && Catch::Contains("65"));
  state->set({}, {{"buffered_tokens", 0}});
  const Floats x = draw(112, 3 * kModel, 0.0F, 1.0F);
  CHECK_THROWS_WITH(f.forward(3, 1, x, state.get()), Catch::Contains("theta") && Catch::Contains("(2, 1, 32)"));
  CHECK_THROWS_WITH(state->set({}, {{"cached_tokens", 1}}), Catch::Contains("cached_tokens"));
  CHECK_THROWS_WITH(state->set({{"theta", ConstArray{DType::float64, {2, 1, 32}, nullptr}}}, {}),
                    Catch::Contains("theta") && Catch::Contains("float64"));
}

}  // namespace samba
