// The Mamba-1 block on every executor: the laws of spec 30 sections 3 to 6 and of spec 32 section 1.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "block_fixture.h"
#include "block_slopes.h"
#include "mamba_block_laws.h"
#include "samba/blocks/mamba1/mamba1_block.h"
#include "samba/blocks/module.h"

namespace samba {
namespace {

BlockModule make_module(Executor& executor, Index d_model, ConvWeightShape shape = ConvWeightShape::with_group_axis) {
  const ArrayMap weights = drawn_weights(Mamba1Block::make_weight_specs(d_model, shape));
  return {executor, "mamba1", nlohmann::json::object(), views(weights)};
}

void check_same_pieces(const ModuleState& got, const ModuleState& want) {
  const ArrayMap expected = want.pieces();
  for (const auto& [name, array] : got.pieces()) {
    INFO(name);
    CHECK(bits_equal(array.floats(), expected.at(name).floats()));
  }
}

}  // namespace

TEST_CASE("A mamba1 sequence may be cut into calls and steps anywhere") {
  constexpr Index kLength = 37;
  const std::vector<std::vector<Index>> splits = {{1, 2, 3, 31}, {16, 16, 5}, {33, 1, 1, 1, 1}};
  for (const auto& executor : every_executor()) {
    INFO(executor->name() << " " << executor->instruction_set());
    BlockModule module = make_module(*executor, 9);
    const Array x = drawn(100, {2, kLength, 9});
    const Array whole = module.forward(x);
    const auto prefilled = module.allocate_state(2);
    module.forward(x, *prefilled);
    for (const std::vector<Index>& split : splits) {
      const auto state = module.allocate_state(2);
      Index at = 0;
      for (const Index count : split) {
        const Array part = positions(x, at, at + count);
        const Array y = count == 1 ? module.step(part, *state) : module.forward(part, *state);
        REQUIRE(bits_equal(y.floats(), positions(whole, at, at + count).floats()));
        at += count;
      }
      check_same_pieces(*state, *prefilled);
    }
  }
}

TEST_CASE("The rows of a mamba1 batch do not see one another") {
  for (const auto& executor : every_executor()) {
    INFO(executor->name() << " " << executor->instruction_set());
    BlockModule module = make_module(*executor, 70);
    check_rows_alone(module, drawn(101, {3, 18, 70}), drawn(102, {3, 18, 70}));
  }
}

TEST_CASE("A ragged mamba1 batch gives each row alone and zeros behind it") {
  for (const auto& executor : every_executor()) {
    INFO(executor->name() << " " << executor->instruction_set());
    BlockModule module = make_module(*executor, 5);
    check_ragged_batch(module, drawn(103, {2, 7, 5}), 4);
  }
}

TEST_CASE("Both spellings of conv1d.weight give the same bits, the gradient in the given shape") {
  const auto executor = make_executor("cpu");
  const ArrayMap grouped = drawn_weights(Mamba1Block::make_weight_specs(8, ConvWeightShape::with_group_axis));
  ArrayMap squeezed;
  for (const auto& [name, array] : grouped) {
    const Shape shape = name == "conv1d.weight" ? Shape{16, 4} : array.shape();
    squeezed.emplace(name, Array::from_floats(shape, array.floats()));
  }
  BlockModule a(*executor, "mamba1", nlohmann::json::object(), views(grouped));
  BlockModule b(*executor, "mamba1", nullptr, views(squeezed));
  const Array x = drawn(104, {2, 6, 8});
  const Array dy = drawn(105, {2, 6, 8});
  CHECK(bits_equal(a.forward(x).floats(), b.forward(x).floats()));
  const NamedGradients of_a = a.backward(x, dy);
  const NamedGradients of_b = b.backward(x, dy);
  CHECK(of_a.names == of_b.names);
  CHECK(of_a.names.front() == "x");
  CHECK(of_a.names.back() == "out_proj.weight");
  CHECK(of_a.arrays.at("conv1d.weight").shape() == Shape{16, 1, 4});
  CHECK(of_b.arrays.at("conv1d.weight").shape() == Shape{16, 4});
  for (const std::string& name : of_a.names) {
    INFO(name);
    CHECK(bits_equal(of_a.arrays.at(name).floats(), of_b.arrays.at(name).floats()));
  }
}

TEST_CASE("The mamba1 gradient is that of the function: central differences agree") {
  const auto executor = make_executor("reference");
  const ArrayMap weights = drawn_weights(Mamba1Block::make_weight_specs(4, ConvWeightShape::with_group_axis));
  check_block_slopes(*executor, "mamba1", weights, drawn(106, {1, 5, 4}), drawn(107, {1, 5, 4}), 0x1p-7F, 5e-3, 2e-3);
}

TEST_CASE("A mamba1 session decodes with its own weights and state") {
  for (const auto& executor : every_executor()) {
    INFO(executor->name() << " " << executor->instruction_set());
    BlockModule module = make_module(*executor, 8);
    const Array x = drawn(108, {2, 4, 8});
    const Array whole = module.forward(x);
    const auto state = module.allocate_state(2);
    module.forward(positions(x, 0, 2), *state);
    DecodeSession session = module.open_session(*state);
    CHECK(session.describe() == "Mamba1DecodeSession(open=true, rows=2)");
    module.set_weight("D", drawn(109, {16}));
    CHECK(bits_equal(session.step(positions(x, 2, 3)).floats(), positions(whole, 2, 3).floats()));
    CHECK(refusal([&] { module.step(positions(x, 3, 4), *state); }).find("owned by an open decode session") !=
          std::string::npos);
    CHECK(bits_equal(session.step(positions(x, 3, 4)).floats(), positions(whole, 3, 4).floats()));
    session.close();
    const auto continued = module.allocate_state(2);
    module.forward(x, *continued);
    CHECK(bits_equal(state->pieces().at("conv_window").floats(), continued->pieces().at("conv_window").floats()));
  }
}

TEST_CASE("A mamba1 block has no tape and no options; its state has the numerical profile 1") {
  const auto executor = make_executor("reference");
  BlockModule module = make_module(*executor, 8);
  CHECK(refusal([&] {
          module.forward_with_tape(drawn(110, {1, 2, 8}));
        }).starts_with("unsupported: Mamba1Block.forward_with_tape"));
  const auto state = module.allocate_state(1);
  CHECK(state->counters() == std::map<std::string, Index>{{"absolute_position", 0}, {"profile_id", 1}});
  CHECK(refusal([&] { state->set({}, {{"buffered_tokens", 1}}); }).find("buffered_tokens") != std::string::npos);
  CHECK(refusal([&] { state->set({}, {{"absolute_position", 3}}); }).find("absolute_position") != std::string::npos);
  state->set({}, {{"profile_id", 2}});
  CHECK(refusal([&] { module.step(drawn(112, {1, 1, 8}), *state); }).find("numerical profile") != std::string::npos);
  state->set({}, {{"profile_id", 1}});
  CHECK(
      bits_equal(module.step(drawn(112, {1, 1, 8}), *state).floats(), module.forward(drawn(112, {1, 1, 8})).floats()));
  const ArrayMap weights = drawn_weights(Mamba1Block::make_weight_specs(8, ConvWeightShape::squeezed));
  CHECK(refusal([&] {
          BlockModule(*executor, "mamba1", {{"dt_limit", 1}}, views(weights));
        }).find("dt_limit") != std::string::npos);
  CHECK(refusal([&] {
          BlockModule(*executor, "mamba1", {{"numeric_mode", "fast"}}, views(weights));
        }).starts_with("unsupported: Mamba1Block: numeric_mode"));
}

TEST_CASE("on the cpu a mamba1 step and a second training pass of a shape allocate nothing") {
  check_repeated_passes_allocate_nothing<Mamba1Block>(drawn(113, {2, 30, 20}));
}

TEST_CASE("A stateful mamba1 call takes only the state of its own kind and width") {
  const auto executor = make_executor("reference");
  BlockModule module = make_module(*executor, 8);
  BlockModule wider = make_module(*executor, 9);
  const auto state = wider.allocate_state(1);
  CHECK(refusal([&] { module.step(drawn(111, {1, 1, 8}), *state); }).find("conv_window") != std::string::npos);
}

}  // namespace samba
