// The Mamba-2 block on every executor: the laws of spec 31 sections 3 to 7 and of spec 32 section 1.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "block_fixture.h"
#include "block_slopes.h"
#include "mamba_block_laws.h"
#include "samba/blocks/mamba2/mamba2_block.h"
#include "samba/blocks/module.h"

namespace samba {
namespace {

ArrayMap weights_of(Index d_model, ConvWeightShape shape = ConvWeightShape::with_group_axis) {
  return drawn_weights(Mamba2Block::make_weight_specs(d_model, shape));
}

BlockModule make_module(Executor& executor, Index d_model, const nlohmann::json& options = nullptr) {
  const ArrayMap weights = weights_of(d_model);
  return {executor, "mamba2", options, views(weights)};
}

// The buffers as far as they are in use.
void check_same_state(const ModuleState& got, const ModuleState& want) {
  CHECK(got.counters() == want.counters());
  const Index used = want.counters().at("buffered_tokens");
  const ArrayMap expected = want.pieces();
  for (const auto& [name, array] : got.pieces()) {
    INFO(name);
    const bool buffer = name.starts_with("buffer_");
    const Array& other = expected.at(name);
    if (buffer) {
      CHECK(bits_equal(positions(array, 0, used).floats(), positions(other, 0, used).floats()));
    } else {
      CHECK(bits_equal(array.floats(), other.floats()));
    }
  }
}

}  // namespace

TEST_CASE("A mamba2 sequence may be cut into calls and steps anywhere, also where a chunk ends") {
  constexpr Index kLength = 261;
  const std::vector<std::vector<Index>> splits = {{254, 1, 1, 1, 4}, {3, 125, 1, 132}, {256, 5}};
  for (const auto& executor : every_executor()) {
    INFO(executor->name() << " " << executor->instruction_set());
    BlockModule module = make_module(*executor, 32);
    const Array x = drawn(200, {1, kLength, 32});
    const Array whole = module.forward(x);
    const Array h_last = module.reports().at("h_last");
    const auto prefilled = module.allocate_state(1);
    module.forward(x, *prefilled);
    CHECK(prefilled->counters().at("buffered_tokens") == 5);
    for (const std::vector<Index>& split : splits) {
      const auto state = module.allocate_state(1);
      Index at = 0;
      for (const Index count : split) {
        const Array part = positions(x, at, at + count);
        const Array y = count == 1 ? module.step(part, *state) : module.forward(part, *state);
        REQUIRE(bits_equal(y.floats(), positions(whole, at, at + count).floats()));
        at += count;
      }
      check_same_state(*state, *prefilled);
      CHECK(bits_equal(module.reports().at("h_last").floats(), h_last.floats()));
    }
  }
}

TEST_CASE("h_last continues a mamba2 sequence from the border of a chunk") {
  const auto executor = make_executor("cpu");
  BlockModule module = make_module(*executor, 32);
  const Array x = drawn(201, {1, 260, 32});
  const Array whole = module.forward(x);
  const auto state = module.allocate_state(1);
  module.forward(positions(x, 0, 256), *state);
  const ArrayMap pieces = state->pieces();
  CHECK(bits_equal(pieces.at("h").floats(), module.reports().at("h_last").floats()));
  CHECK(state->counters().at("buffered_tokens") == 0);
  const auto fresh = module.allocate_state(1);
  fresh->set({{"h", pieces.at("h")}, {"conv_window", pieces.at("conv_window")}}, {});
  CHECK(bits_equal(module.forward(positions(x, 256, 260), *fresh).floats(), positions(whole, 256, 260).floats()));
}

TEST_CASE("The rows of a mamba2 batch do not see one another") {
  for (const auto& executor : every_executor()) {
    INFO(executor->name() << " " << executor->instruction_set());
    BlockModule module = make_module(*executor, 64);
    check_rows_alone(module, drawn(202, {3, 9, 64}), drawn(203, {3, 9, 64}));
  }
}

TEST_CASE("A ragged mamba2 batch gives each row alone and zeros behind it") {
  for (const auto& executor : every_executor()) {
    INFO(executor->name() << " " << executor->instruction_set());
    BlockModule module = make_module(*executor, 32);
    check_ragged_batch(module, drawn(204, {2, 7, 32}), 4);
  }
}

TEST_CASE("A gradient has the shape in which conv1d.weight was given") {
  const auto executor = make_executor("cpu");
  const ArrayMap grouped = weights_of(32);
  ArrayMap squeezed;
  for (const auto& [name, array] : grouped) {
    const Shape shape = name == "conv1d.weight" ? Shape{320, 4} : array.shape();
    squeezed.emplace(name, Array::from_floats(shape, array.floats()));
  }
  BlockModule a(*executor, "mamba2", nlohmann::json::object(), views(grouped));
  BlockModule b(*executor, "mamba2", nullptr, views(squeezed));
  const Array x = drawn(205, {2, 6, 32});
  const Array dy = drawn(206, {2, 6, 32});
  const NamedGradients of_a = a.backward(x, dy);
  const NamedGradients of_b = b.backward(x, dy);
  const std::vector<std::string> names = {"x",           "block_norm.weight", "in_proj.weight", "conv1d.weight",
                                          "conv1d.bias", "dt_bias",           "A_log",          "D",
                                          "norm.weight", "out_proj.weight"};
  CHECK(of_a.names == names);
  CHECK(of_a.arrays.at("conv1d.weight").shape() == Shape{320, 1, 4});
  CHECK(of_b.arrays.at("conv1d.weight").shape() == Shape{320, 4});
  for (const std::string& name : names) {
    INFO(name);
    CHECK(bits_equal(of_a.arrays.at(name).floats(), of_b.arrays.at(name).floats()));
  }
}

TEST_CASE("The mamba2 gradient is that of the function: central differences agree") {
  const auto executor = make_executor("cpu");
  const ArrayMap weights = weights_of(32);
  check_block_slopes(*executor, "mamba2", weights, drawn(207, {1, 5, 32}), drawn(208, {1, 5, 32}), 0x1p-8F, 1e-2, 5e-3);
}

TEST_CASE("A mamba2 session decodes across a chunk with its own weights and state") {
  for (const auto& executor : every_executor()) {
    INFO(executor->name() << " " << executor->instruction_set());
    BlockModule module = make_module(*executor, 32);
    const Array x = drawn(209, {1, 258, 32});
    const Array whole = module.forward(x);
    const auto state = module.allocate_state(1);
    module.forward(positions(x, 0, 255), *state);
    DecodeSession session = module.open_session(*state);
    CHECK(session.describe() == "Mamba2DecodeSession(open=true, rows=1)");
    module.set_weight("D", drawn(210, {2 * 32 / 64}));
    for (Index t = 255; t < 258; ++t) {
      CHECK(bits_equal(session.step(positions(x, t, t + 1)).floats(), positions(whole, t, t + 1).floats()));
    }
    CHECK(refusal([&] { module.step(positions(x, 0, 1), *state); }).find("owned by an open decode session") !=
          std::string::npos);
    CHECK(state->counters().at("buffered_tokens") == 255);
    session.close();
    CHECK(state->counters().at("buffered_tokens") == 2);
  }
}

TEST_CASE("on the cpu a mamba2 step and a second training pass of a shape allocate nothing") {
  check_repeated_passes_allocate_nothing<Mamba2Block>(drawn(215, {1, 258, 32}));
}

TEST_CASE("dt_limit clamps the step sizes of a mamba2 block; its values are not judged") {
  const auto executor = make_executor("cpu");
  const Array x = drawn(211, {1, 4, 32});
  const Array free = make_module(*executor, 32).forward(x);
  const auto with = [&](const nlohmann::json& limit) {
    return make_module(*executor, 32, {{"dt_limit", limit}}).forward(x);
  };
  CHECK(bits_equal(with({0.0, "inf"}).floats(), free.floats()));
  CHECK(bits_equal(with({"-inf", "inf"}).floats(), free.floats()));
  CHECK(differ(with({0.5, 0.6}).floats(), free.floats()));
  // lo above hi: every step is hi
  CHECK(bits_equal(with({0.9, 0.25}).floats(), with({0.25, 0.25}).floats()));
}

TEST_CASE("A mamba2 block refuses other options, a tape and a full buffer") {
  const auto executor = make_executor("reference");
  BlockModule module = make_module(*executor, 32);
  CHECK(refusal([&] {
          module.forward_with_tape(drawn(212, {1, 2, 32}));
        }).starts_with("unsupported: Mamba2Block.forward_with_tape"));
  const auto state = module.allocate_state(1);
  state->set({}, {{"buffered_tokens", 256}});
  CHECK(refusal([&] {
          module.step(drawn(213, {1, 1, 32}), *state);
        }) == "value: Mamba2Block.step: buffered_tokens must be in [0, 256), got 256");
  CHECK(refusal([&] {
          make_module(*executor, 32, {{"window", 4}});
        }).starts_with("type: Mamba2Block: a mamba2 block has no option"));
  CHECK(refusal([&] { make_module(*executor, 32, {{"numeric_mode", "fast"}}); }).starts_with("unsupported: "));
  CHECK(refusal([&] { make_module(*executor, 32, {{"dt_limit", 0.5}}); }).starts_with("type: Mamba2Block: dt_limit"));
  CHECK(refusal([&] {
          make_module(*executor, 32, {{"dt_limit", {0.5}}});
        }).starts_with("value: Mamba2Block: dt_limit"));
  CHECK(refusal([&] {
          make_module(*executor, 32, {{"dt_limit", {0.5, "high"}}});
        }).starts_with("type: Mamba2Block: dt_limit"));
  CHECK(refusal([&] { make_module(*executor, 48); }).find("multiple of 32, got 48") != std::string::npos);
  BlockModule wider = make_module(*executor, 64);
  const auto other = wider.allocate_state(1);
  CHECK(refusal([&] { module.step(drawn(214, {1, 1, 32}), *other); }).find("conv_window") != std::string::npos);
}

}  // namespace samba
