// What people of this field report of other programs, each as a test: steps that differ from the forward pass, prefill
// that depends on where it is cut, losses that are no numbers when a length is no multiple of a chunk, widths that are
// found out by a crash.
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bits.h"
#include "samba/backends/registry.h"
#include "samba/core/error.h"
#include "samba/model/stack_config.h"
#include "samba/train/trainer.h"
#include "samba/verify/compare.h"
#include "samba/verify/slices.h"
#include "samba/verify/state_pieces.h"

namespace samba {
namespace {

using nlohmann::json;
using verify::slice;

constexpr Index kVocab = 17;

// One layer of each kind that keeps a state.
json hybrid_config(int d_model = 32) {
  return {{"vocab", kVocab},
          {"d_model", d_model},
          {"layers",
           {{{"kind", "mamba1"}},
            {{"kind", "mamba2"}},
            {{"kind", "mamba3"}},
            {{"kind", "transformer"}, {"n_heads", 2}, {"intermediate", 24}, {"window", 48}}}}};
}

Array ids_of(Index rows, Index length, Index shift = 0) {
  Array ids(DType::int32, {rows, length});
  auto values = ids.values<std::int32_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto place = static_cast<Index>(i) + shift;
    values[i] = static_cast<std::int32_t>((place * place + 5 * place / 3) % kVocab);
  }
  return ids;
}

std::unique_ptr<SambaStack> stack_of(Executor& executor, const json& config) {
  Generator generator(3);
  return std::make_unique<SambaStack>(executor, stack_config_from_json(config), generator, SambaStack::Use::inference);
}

bool same(const Array& a, const Array& b) { return !verify::first_difference("x", a, b).has_value(); }

}  // namespace

TEST_CASE("single steps have the bits of the forward pass for every length from 1 to 130, twice") {
  for (const int threads : {1, 2}) {
    const auto executor = make_executor("cpu", {threads, ""});
    const auto stack = stack_of(*executor, hybrid_config());
    for (int time = 0; time < 2; ++time) {
      for (Index length = 1; length <= 130; ++length) {
        INFO("length " << length << ", threads " << threads);
        const Array ids = ids_of(2, length, length);
        const Array want = stack->forward(ids);
        const auto state = stack->allocate_state(2, length);
        bool equal = true;
        for (Index at = 0; at < length; ++at) {
          const Array row = stack->step(slice(ids, 1, at, at + 1), *state);
          equal = equal && same(row, verify::reshaped(slice(want, 1, at, at + 1), {2, kVocab}));
        }
        CHECK(equal);
      }
    }
  }
}

TEST_CASE(
    "a prefill cut at any point of 257, its state carried to another program's stack, has the bits of the whole") {
  constexpr Index kLength = 257;
  const auto executor = make_executor("cpu", {2, ""});
  const auto stack = stack_of(*executor, hybrid_config());
  const Array ids = ids_of(1, kLength);
  const auto whole = stack->allocate_state(1, kLength);
  const Array want = stack->forward(ids, *whole);
  for (Index cut = 0; cut <= kLength; ++cut) {
    INFO("cut at " << cut);
    const auto first = stack->allocate_state(1, kLength);
    if (cut > 0) CHECK(same(stack->forward(slice(ids, 1, 0, cut), *first), slice(want, 1, 0, cut)));
    const auto other_executor = make_executor("cpu", {1, ""});
    const auto other = stack_of(*other_executor, hybrid_config());
    const auto second = other->allocate_state(1, kLength);
    if (cut > 0) {
      // Brings the new state to the same position, then takes the pieces over: nothing of its own is left.
      other->forward(ids_of(1, cut, 999), *second);
      for (std::size_t layer = 0; layer < first->layers(); ++layer) {
        const ArrayMap pieces = first->layer(layer).pieces();
        second->layer(layer).set({pieces.begin(), pieces.end()}, first->layer(layer).counters());
      }
    }
    if (cut == kLength) continue;
    CHECK(same(other->forward(slice(ids, 1, cut, kLength), *second), slice(want, 1, cut, kLength)));
    for (std::size_t layer = 0; layer < whole->layers(); ++layer) {
      const ArrayMap mine = verify::held_pieces(second->layer(layer));
      for (const auto& [piece, array] : verify::held_pieces(whole->layer(layer))) {
        CHECK(same(mine.at(piece), array));
      }
    }
  }
}

TEST_CASE("training at any length gives finite losses and the reference's gradients") {
  for (const Index length : {1, 63, 64, 65, 255, 257}) {
    INFO("length " << length);
    std::vector<Array> gradients;
    std::vector<float> losses;
    for (const char* device : {"reference", "cpu"}) {
      const auto executor = make_executor(device, {2, ""});
      const auto trainer = SambaTrainer::create(*executor, stack_config_from_json(hybrid_config()), 5);
      auto step = trainer->step_gradient(ids_of(2, length), ids_of(2, length, 1));
      gradients.push_back(std::move(step.gradient));
      losses.push_back(step.loss);
      CHECK(std::isfinite(trainer->train_step(ids_of(2, length), ids_of(2, length, 1)).loss));
      CHECK(std::isfinite(trainer->train_step(ids_of(2, length, 7), ids_of(2, length, 8)).loss));
    }
    CHECK(std::isfinite(losses[0]));
    CHECK(to_bits(losses[0]) == to_bits(losses[1]));
    CHECK(same(gradients[0], gradients[1]));
    for (const float value : gradients[0].floats()) REQUIRE(std::isfinite(value));
  }
}

TEST_CASE("a width either works or is refused when the configuration is read, with field, value and rule") {
  const auto executor = make_executor("cpu", {1, ""});
  for (const int width : {32, 96, 160}) {
    INFO("d_model " << width);
    const auto stack = stack_of(*executor, hybrid_config(width));
    const Array logits = stack->forward(ids_of(1, 5));
    for (const float value : logits.floats()) REQUIRE(std::isfinite(value));
  }
  for (const int width : {33, 48}) {
    INFO("d_model " << width);
    json config = {{"vocab", kVocab}, {"d_model", width}, {"layers", {{{"kind", "mamba3"}}}}};
    try {
      stack_config_from_json(config);
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::value);
      const std::string message = error.what();
      CHECK(message.find("d_model") != std::string::npos);
      CHECK(message.find(std::to_string(width)) != std::string::npos);
      CHECK(message.find("multiple of 32") != std::string::npos);
    }
  }
}

}  // namespace samba
