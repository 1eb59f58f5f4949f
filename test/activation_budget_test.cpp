// The tape of a stack's gradient under a budget: the same bits whatever it is (docs/spec-extensions.md section 3).
#include <catch2/catch.hpp>

#include "bits.h"
#include "general_stack.h"
#include "samba/core/error.h"
#include "samba/model/activation_plan.h"
#include "samba/train/train_config.h"
#include "small_stack.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;

constexpr Index kRows = 2, kLength = 9, kTokens = kRows * kLength;
constexpr Index kInput = kTokens * 32;  // floats of the input of a layer

StackConfig seven_layers() {
  return stack_config_from_json(nlohmann::json::parse(R"({
    "vocab": 40, "d_model": 32, "dropout": 0.25,
    "layers": [{"kind": "transformer", "n_heads": 2, "intermediate": 24, "qk_norm": true},
               {"kind": "mamba3"}, {"kind": "mamba2"},
               {"kind": "transformer", "n_heads": 4, "intermediate": 40, "norm": "layernorm", "mlp": "gelu"},
               {"kind": "mamba1"}, {"kind": "transformer", "n_heads": 2, "intermediate": 24},
               {"kind": "transformer", "n_heads": 2, "intermediate": 24}]})"));
}

GradientOptions dropping() {
  GradientOptions options;
  options.dropout = DropoutStream{5, 1};
  return options;
}

TEST_CASE("A plan keeps everything while it fits, then the inputs of segments, and never more than the budget") {
  const std::vector<Index> stores = {100, 0, 0, 70, 0, 50, 60};
  const auto plan = [&](Index floats) { return plan_activations(10, stores, 4 * floats); };
  const ActivationPlan whole = plan(360);
  CHECK(whole.segment == 1);
  CHECK(whole.inputs == 8);
  CHECK(whole.floats == 360);
  CHECK(whole.has_store == std::vector<bool>{true, false, false, true, false, true, true});
  CHECK(plan(359).has_store == std::vector<bool>{false, false, false, true, false, true, true});
  CHECK(plan(80).floats == 80);
  CHECK(plan(80).has_store == std::vector<bool>(7, false));
  // 7 layers: segments of 2 keep 4 + 1 + 1 inputs, of 3 keep 3 + 2 + 1, of 4 keep 2 + 3 + 1.
  CHECK(plan(79).segment == 2);
  CHECK(plan(60).inputs == 6);
  CHECK(least_activation_bytes(7, 10) == 240);
  CHECK_THROWS_WITH(plan(59), Contains("240 bytes") && Contains("given 236"));
  for (Index layers = 1; layers <= 40; ++layers) {
    const std::vector<Index> none(static_cast<std::size_t>(layers), 0);
    const Index least = least_activation_bytes(layers, 10);
    for (Index budget = least; budget <= 44 * layers + 80; budget += 4) {
      const ActivationPlan of = plan_activations(10, none, budget);
      CHECK(of.floats * 4 <= budget);
    }
    CHECK_THROWS_AS(plan_activations(10, none, least - 1), Error);
  }
  CHECK(plan_activations(10, stores, std::nullopt).floats == 360);
}

TEST_CASE("Loss and gradients have one set of bits for every budget") {
  const StackConfig config = seven_layers();
  for (const char* device : {"reference", "cpu"}) {
    const auto executor = make_executor(device);
    Generator generator(9);
    SambaStack stack(*executor, config, generator);
    const Array ids = token_array(kRows, kLength, 40, 0), targets = token_array(kRows, kLength, 40, 1);
    const LossAndGradients want = stack.loss_and_grads(ids, targets, dropping());
    const Index whole = stack.activation_bytes(kTokens);
    const Index least = least_activation_bytes(7, kInput);
    CHECK(least == 6 * kInput * 4);
    CHECK(whole > 8 * kInput * 4);
    for (const Index budget : {whole, whole - 1, 8 * kInput * 4 + 40000, 8 * kInput * 4, 8 * kInput * 4 - 1, least}) {
      INFO(device << ", budget " << budget);
      stack.set_activation_budget(budget);
      CHECK(stack.activation_bytes(kTokens) <= budget);
      const LossAndGradients got = stack.loss_and_grads(ids, targets, dropping());
      CHECK(to_bits(got.loss) == to_bits(want.loss));
      CHECK(bits_equal(got.gradients.floats(), want.gradients.floats()));
    }
    stack.set_activation_budget(least - 1);
    CHECK_THROWS_WITH(stack.loss_and_grads(ids, targets, dropping()), Contains(std::to_string(least) + " bytes"));
    CHECK_THROWS_AS(stack.set_activation_budget(-1), Error);
    stack.set_activation_budget(std::nullopt);
    CHECK(bits_equal(stack.loss_and_grads(ids, targets, dropping()).gradients.floats(), want.gradients.floats()));
  }
}

TEST_CASE("Steps of a trainer under the smallest budget are the steps without one") {
  const auto executor = make_executor("cpu");
  const auto free = SambaTrainer::create(*executor, small_config(0.1), 3);
  const auto bound = SambaTrainer::create(*executor, small_config(0.1), 3);
  bound->stack().set_activation_budget(least_activation_bytes(2, kInput));
  for (Index step = 0; step < 3; ++step) {
    for (SambaTrainer* trainer : {free.get(), bound.get()}) {
      trainer->train_step(token_array(kRows, kLength, 11, step), token_array(kRows, kLength, 11, step + 1));
    }
  }
  CHECK(training_digest(*free) == training_digest(*bound));
}

TEST_CASE("A run's configuration states the budget; one below the smallest tape is refused with that tape's size") {
  nlohmann::json config = nlohmann::json::parse(R"({
    "steps": 1, "model": {"vocab": 256, "d_model": 32, "layers": ["mamba3", "mamba3", "mamba3", "mamba3"]},
    "data": {"paths": ["t"]}, "batch": {"rows": 4, "length": 128, "accumulation_steps": 2}})");
  const TrainConfig without = parse_train_config(config, "/");
  CHECK_FALSE(without.train.activation_budget_bytes.has_value());
  // Four layers in segments of two: 2 + 1 + 1 inputs of 2 x 128 tokens.
  const Index least = 4 * 2 * 128 * 32 * 4;
  config["train"]["activation_budget_bytes"] = least;
  const TrainConfig with = parse_train_config(config, "/");
  CHECK(with.train.activation_budget_bytes == least);
  CHECK(resolved_json(with)["train"]["activation_budget_bytes"] == least);
  CHECK(first_difference(resolved_json(without), resolved_json(with)).empty());
  config["train"]["activation_budget_bytes"] = least - 1;
  CHECK_THROWS_WITH(parse_train_config(config, "/"),
                    Contains("/train/activation_budget_bytes: must be at least " + std::to_string(least)));
}

}  // namespace
}  // namespace samba
