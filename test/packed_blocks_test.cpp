// Blocks and stacks of packed weights (spec 50 A1 to A3): the bits of the float32 model of the expanded weights.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "block_fixture.h"
#include "samba/blocks/mamba1/mamba1_block.h"
#include "samba/blocks/mamba2/mamba2_block.h"
#include "samba/blocks/mamba3/mamba3_block.h"
#include "samba/blocks/module.h"
#include "samba/blocks/transformer/transformer_options.h"
#include "samba/numerics/generator.h"
#include "small_stack.h"
#include "temporary_folder.h"

namespace samba {
namespace {

using nlohmann::json;

constexpr WeightFormat kPacked[] = {WeightFormat::bfloat16, WeightFormat::int8};

struct Kind {
  std::string name;
  json options;
  std::vector<WeightSpec> specs;
  std::string vector;  // a weight of rank 1
  std::string matrix;
};

std::vector<Kind> kinds() {
  TransformerOptions options;
  options.d_model = 24;
  options.n_heads = 4;
  options.n_kv_heads = 2;
  options.head_dim = 6;
  options.intermediate = 20;
  return {
      {"transformer",
       {{"n_heads", 4}, {"n_kv_heads", 2}},
       options.weight_specs(),
       "input_layernorm.weight",
       "q_proj.weight"},
      {"mamba1", json::object(), Mamba1Block::make_weight_specs(20, ConvWeightShape::with_group_axis), "D", "A_log"},
      {"mamba1", json::object(), Mamba1Block::make_weight_specs(20, ConvWeightShape::squeezed), "D", "conv1d.weight"},
      {"mamba2", json::object(), Mamba2Block::make_weight_specs(32, ConvWeightShape::with_group_axis), "A_log",
       "in_proj.weight"},
      {"mamba3", json::object(), Mamba3Block::make_weight_specs(32), "D", "B_bias"}};
}

// A packed block and the float32 block of the same values.
struct Pair {
  Pair(Executor& executor, const Kind& kind, WeightFormat format)
      : stored(pack(drawn_weights(kind.specs), format)),
        packed(executor, kind.name, kind.options, stored),
        plain(executor, kind.name, kind.options, expand(stored)) {}
  WeightMap stored;
  BlockModule packed;
  BlockModule plain;
};

void check_same(const NamedGradients& got, const NamedGradients& want) {
  CHECK(got.names == want.names);
  for (const auto& [name, gradient] : want.arrays) {
    INFO("gradient of " << name);
    CHECK(bits_equal(got.arrays.at(name).floats(), gradient.floats()));
  }
}

}  // namespace

TEST_CASE("a block of packed weights has the bits of the block of the expanded ones") {
  for (const auto& executor : every_executor()) {
    for (const Kind& kind : kinds()) {
      for (const WeightFormat format : kPacked) {
        INFO(executor->name() << " " << executor->instruction_set() << ", " << kind.name << ", "
                              << weight_format_name(format));
        Pair block(*executor, kind, format);
        CHECK(block.packed.weight_format() == weight_format_name(format));
        CHECK(block.plain.weight_format() == "float32");
        const Index width = block.packed.d_model();
        const Array x = drawn(90, {2, 9, width});
        const Array dy = drawn(91, {2, 9, width});
        CHECK(bits_equal(block.packed.forward(x).floats(), block.plain.forward(x).floats()));
        check_same(block.packed.backward(x, dy), block.plain.backward(x, dy));

        const auto packed_state = block.packed.allocate_state(2, 12), state = block.plain.allocate_state(2, 12);
        const Array head = positions(x, 0, 5);
        CHECK(
            bits_equal(block.packed.forward(head, *packed_state).floats(), block.plain.forward(head, *state).floats()));
        for (Index t = 5; t < 9; ++t) {
          const Array token = positions(x, t, t + 1);
          CHECK(bits_equal(block.packed.step(token, *packed_state).floats(), block.plain.step(token, *state).floats()));
        }
        const ArrayMap pieces = packed_state->pieces();
        for (const auto& [name, piece] : state->pieces()) {
          CHECK(bits_equal(pieces.at(name).floats(), piece.floats()));
        }
        DecodeSession session = block.packed.open_session(*packed_state);
        const Array next = positions(x, 0, 1);
        CHECK(bits_equal(session.step(next).floats(), block.plain.step(next, *state).floats()));
      }
    }
  }
}

TEST_CASE("a tape of a packed block gives the gradients of the float32 block, retained or replayed") {
  for (const auto& executor : every_executor()) {
    const Kind transformer = kinds().front();
    for (const WeightFormat format : kPacked) {
      Pair block(*executor, transformer, format);
      const Array x = drawn(92, {1, 7, 24}), dy = drawn(93, {1, 7, 24});
      const NamedGradients want = block.plain.backward(x, dy);
      for (const std::int64_t budget : {std::int64_t{0}, BlockModule::kDefaultActivationBudget}) {
        const BlockModule::Taped taped = block.packed.forward_with_tape(x, budget);
        CHECK(taped.tape->retained() == (budget > 0));
        check_same(block.packed.backward_from_tape(*taped.tape, dy), want);
      }
    }
  }
}

TEST_CASE("a block gives packed weights back, expanded or as they are stored") {
  const auto executor = make_executor("cpu", ExecutorOptions{1, ""});
  for (const Kind& kind : kinds()) {
    for (const WeightFormat format : kPacked) {
      Pair block(*executor, kind, format);
      const WeightMap stored = block.packed.stored_weights();
      for (const auto& [name, weight] : block.stored) {
        INFO(kind.name << " " << name);
        CHECK(stored.at(name).format() == weight.format());
        CHECK(bits_equal(block.packed.weight(name).floats(), expand(weight).floats()));
        CHECK(bits_equal(expand(stored.at(name)).floats(), expand(weight).floats()));
      }
      CHECK(refusal([&] { block.packed.device_weight(kind.matrix); }).find("is stored as") != std::string::npos);
      CHECK(block.packed.device_weight(kind.vector) != nullptr);
    }
  }
}

TEST_CASE("a packed block is saved packed and loaded so") {
  const auto executor = make_executor("cpu", ExecutorOptions{1, ""});
  const TemporaryFolder folder;
  for (const Kind& kind : kinds()) {
    for (const WeightFormat format : kPacked) {
      INFO(kind.name << " " << weight_format_name(format));
      Pair block(*executor, kind, format);
      block.packed.save(folder / "packed");
      block.plain.save(folder / "plain");
      BlockModule loaded = BlockModule::load(*executor, folder / "packed");
      CHECK(loaded.weight_format() == weight_format_name(format));
      const Array x = drawn(98, {1, 4, loaded.d_model()});
      CHECK(bits_equal(loaded.forward(x).floats(), block.packed.forward(x).floats()));
      CHECK(std::filesystem::file_size(folder / "packed") < std::filesystem::file_size(folder / "plain"));
    }
  }
}

TEST_CASE("a weight can be set in another form; open sessions keep the old one") {
  const auto executor = make_executor("cpu", ExecutorOptions{1, ""});
  for (const Kind& kind : kinds()) {
    INFO(kind.name << " " << kind.matrix);
    Pair block(*executor, kind, WeightFormat::int8);
    const Index width = block.packed.d_model();
    const Array x = drawn(94, {1, 3, width}), token = drawn(95, {1, 1, width});
    const auto state = block.packed.allocate_state(1, 8);
    DecodeSession session = block.packed.open_session(*state);
    const Array old = block.plain.step(token, *block.plain.allocate_state(1, 8));

    const Array value = drawn(96, block.packed.weight(kind.matrix).shape(), 0.0F, 0.3F);
    block.packed.set_weight(kind.matrix, value);
    block.plain.set_weight(kind.matrix, value);
    CHECK(block.packed.weight_format() == "int8");
    CHECK(bits_equal(block.packed.forward(x).floats(), block.plain.forward(x).floats()));
    CHECK(bits_equal(session.step(token).floats(), old.floats()));

    const Weight packed = pack_one(value, WeightFormat::int8);
    block.packed.set_weight(kind.matrix, packed);
    block.plain.set_weight(kind.matrix, expand(packed));
    CHECK(bits_equal(block.packed.forward(x).floats(), block.plain.forward(x).floats()));
    const Array d = drawn(97, block.packed.weight(kind.vector).shape(), 0.5F, 0.1F);
    block.packed.set_weight(kind.vector, d);
    block.plain.set_weight(kind.vector, d);
    CHECK(bits_equal(block.packed.forward(x).floats(), block.plain.forward(x).floats()));
    CHECK(refusal([&] {
            block.packed.set_weight(kind.matrix, pack_one(value, WeightFormat::bfloat16));
          }).find("weights mix formats") != std::string::npos);
  }
}

TEST_CASE("packed weights that do not fit are refused") {
  const auto executor = make_executor("cpu", ExecutorOptions{1, ""});
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    const WeightMap good = pack(drawn_weights(kind.specs), WeightFormat::int8);
    const auto attempt = [&](const std::string& name, Weight value) {
      WeightMap weights = good;
      weights[name] = std::move(value);
      return refusal([&] { BlockModule(*executor, kind.name, kind.options, weights); });
    };
    const Array matrix = expand(good.at(kind.matrix));
    CHECK(attempt(kind.matrix, pack_one(matrix, WeightFormat::bfloat16)).find("weights mix formats") !=
          std::string::npos);
    const Array one = Array::zeros({1, expand(good.at(kind.vector)).size()});
    const std::string rank = attempt(kind.vector, pack_one(one, WeightFormat::int8));
    CHECK(rank.starts_with("value: "));
    CHECK(rank.find(kind.vector) != std::string::npos);
    CHECK(attempt(kind.matrix, pack_one(Array::zeros({3, 3}), WeightFormat::int8)).find(kind.matrix) !=
          std::string::npos);

    // An infinity is found by the block's own check, which names the weight and the place.
    Array codes(DType::int8, matrix.shape());
    Array exponents(DType::int32, {matrix.shape()[0]});
    const Index row = matrix.shape()[0] - 1;
    codes.values<std::int8_t>()[static_cast<std::size_t>(row * matrix.shape()[1])] = 2;
    exponents.values<std::int32_t>()[static_cast<std::size_t>(row)] = 127;
    WeightMap weights = good;
    weights[kind.matrix] = PackedWeight(std::move(codes), std::move(exponents));
    BlockModule block(*executor, kind.name, kind.options, weights);
    const std::string found = refusal([&] { block.forward(drawn(1, {1, 2, block.d_model()})); });
    CHECK(found.find("infinity in " + kind.matrix + " at flat index " + std::to_string(row * matrix.shape()[1])) !=
          std::string::npos);
  }
}

TEST_CASE("a stack of packed weights has the bits of the stack of the expanded ones, and is for inference") {
  for (const auto& executor : every_executor()) {
    for (const bool tied : {true, false}) {
      const SambaConfig config = small_config(0.0, tied);
      Generator generator(7);
      const ArrayMap drawn_values = SambaStack(*executor, config, generator).weights();
      for (const WeightFormat format : kPacked) {
        INFO(executor->name() << " " << executor->instruction_set() << ", " << weight_format_name(format));
        const WeightMap stored = pack(drawn_values, format);
        SambaStack packed(*executor, config, stored, SambaStack::Use::inference);
        SambaStack plain(*executor, config, expand(stored), SambaStack::Use::inference);
        CHECK(packed.weight_format() == format);
        CHECK(packed.parameters_sha256() == plain.parameters_sha256());
        CHECK(weight_format(packed.stored_weights()) == format);
        const Array ids = token_array(2, 6, 11, 1);
        CHECK(bits_equal(packed.forward(ids).floats(), plain.forward(ids).floats()));
        const auto packed_state = packed.allocate_state(2, 6), state = plain.allocate_state(2, 6);
        for (Index t = 0; t < 6; ++t) {
          const Array token = token_array(2, 1, 11, t);
          CHECK(bits_equal(packed.step(token, *packed_state).floats(), plain.step(token, *state).floats()));
        }
        CHECK(refusal([&] { packed.mutable_device_parameters(); }).starts_with("unsupported: "));
        CHECK(refusal([&] { SambaStack(*executor, config, stored); }).starts_with("unsupported: "));
        // Other weights, in another form.
        packed.load_weights(drawn_values);
        CHECK(packed.weight_format() == WeightFormat::float32);
        plain.load_weights(drawn_values);
        CHECK(bits_equal(packed.forward(ids).floats(), plain.forward(ids).floats()));
        WeightMap wrong = stored;
        wrong["norm_f.weight"] = pack_one(Array::zeros({1, 32}), format);
        CHECK(refusal([&] { packed.load_weights(wrong); }).find("norm_f.weight") != std::string::npos);
        CHECK(packed.weight_format() == WeightFormat::float32);
      }
    }
  }
}

}  // namespace samba
