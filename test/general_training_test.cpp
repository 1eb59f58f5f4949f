// Training of general stacks: the same bits on every executor and number of threads, all optimizers, checkpoints that
// continue as if nothing had happened, and configurations that cannot be trained.
#include <catch2/catch.hpp>

#include "general_stack.h"
#include "samba/core/error.h"
#include "samba/train/checkpoint.h"
#include "samba/train/train_config.h"
#include "small_stack.h"
#include "temporary_folder.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

// One layer of each kind that has a gradient, and all that a general stack adds.
StackConfig trainable(double dropout = 0.0) {
  json model = json::parse(R"({
    "vocab": 11, "d_model": 32, "final_norm": "rmsnorm_offset", "embedding_scale": 5.5, "logits_softcap": 20,
    "tie_embeddings": false,
    "layers": [{"kind": "transformer", "n_heads": 2, "head_dim": 24, "n_kv_heads": 1, "intermediate": 20, "window": 5},
               {"kind": "mamba1"}, {"kind": "mamba2", "dt_limit": [0.001, 0.1]}, {"kind": "mamba3"}]})");
  model["dropout"] = dropout;
  return stack_config_from_json(model);
}

OptimizerSettings settings_of(OptimizerKind kind, Index pieces = 1) {
  OptimizerSettings settings = OptimizerSettings::defaults(kind);
  settings.lr = 0.01;
  settings.max_norm = 1.0;
  settings.accumulation_steps = pieces;
  if (kind == OptimizerKind::sgd) settings.momentum = 0.9;
  return settings;
}

void take_steps(SambaTrainer& trainer, Index first, Index end, Index rows = 2, Index length = 9) {
  const Index vocab = trainer.stack().config().vocab;
  for (Index step = first; step < end; ++step) {
    trainer.train_step(token_array(rows, length, vocab, step), token_array(rows, length, vocab, step + 1));
  }
}

TEST_CASE("Every shipped stack trains to the same bits on cpu, three threads and the reference") {
  for (const auto& [name, config] : shipped_general_stacks()) {
    INFO(name);
    std::vector<std::string> digests;
    for (const auto& [device, threads] : {std::pair("cpu", 1), std::pair("cpu", 3), std::pair("reference", 1)}) {
      const auto executor = make_executor(device, {threads, ""});
      const auto trainer = SambaTrainer::create(*executor, config, 3, settings_of(OptimizerKind::adamw));
      const std::string before = training_digest(*trainer);
      take_steps(*trainer, 0, 2);
      digests.push_back(training_digest(*trainer));
      CHECK(digests.back() != before);
    }
    CHECK(digests[0] == digests[1]);
    CHECK(digests[0] == digests[2]);
  }
}

TEST_CASE("A general stack trains with adamw, adam and sgd, its checkpoint continues to the uninterrupted bits") {
  const TemporaryFolder folder;
  const auto executor = make_executor("cpu", {1, ""}), threads = make_executor("cpu", {3, ""});
  std::vector<std::string> ends;
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::sgd}) {
    INFO(optimizer_kind_name(kind));
    const auto whole = SambaTrainer::create(*executor, trainable(0.1), 3, settings_of(kind));
    take_steps(*whole, 0, 5);
    const auto part = SambaTrainer::create(*executor, trainable(0.1), 3, settings_of(kind));
    take_steps(*part, 0, 2);
    const Path path = folder.path() / "part.samba";
    save_checkpoint(*part, path);
    const auto resumed = load_for_training(*threads, path);
    CHECK(training_digest(*resumed) == training_digest(*part));
    CHECK(resumed->stack().config() == trainable(0.1));
    take_steps(*resumed, 2, 5);
    CHECK(training_digest(*resumed) == training_digest(*whole));
    const auto model = load_for_inference(*executor, path);
    CHECK(model->parameters_sha256() == part->stack().parameters_sha256());
    ends.push_back(training_digest(*whole));
  }
  CHECK(ends[0] != ends[1]);
  CHECK(ends[1] != ends[2]);
}

TEST_CASE("Accumulated microbatches of a general stack draw the coins of the whole step") {
  const auto executor = make_executor("cpu", {1, ""});
  const auto one = SambaTrainer::create(*executor, trainable(0.25), 3, settings_of(OptimizerKind::adamw));
  const auto two = SambaTrainer::create(*executor, trainable(0.25), 3, settings_of(OptimizerKind::adamw, 2));
  const Array inputs = token_array(2, 128, 11, 0), targets = token_array(2, 128, 11, 1);
  const auto whole = one->step_gradient(inputs, targets), parts = two->step_gradient(inputs, targets);
  CHECK(parts.microbatch_losses.size() == 2);
  CHECK(whole.loss == parts.loss);
  // One leaf of 128 tokens a microbatch: what is summed over tokens in leaves and a tree is that of the unsplit run.
  // The lookup's chain and some sums of the Mamba blocks are not.
  const Registry& registry = one->stack().registry();
  for (std::size_t i = 1; i < registry.tensors().size(); ++i) {
    const ParameterTensor& tensor = registry.tensors()[i];
    const auto same = [&](Index at) {
      return whole.gradient.floats()[static_cast<std::size_t>(at)] ==
             parts.gradient.floats()[static_cast<std::size_t>(at)];
    };
    if (!tensor.name.starts_with("layers.0.") && !tensor.name.starts_with("lm_head")) continue;
    INFO(tensor.name);
    bool equal = true;
    for (Index at = tensor.offset; at < tensor.offset + tensor.size; ++at) equal = equal && same(at);
    CHECK(equal);
  }
}

TEST_CASE("Training lowers the loss of a general stack") {
  const auto executor = make_executor("cpu", {1, ""});
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::sgd}) {
    OptimizerSettings settings = settings_of(kind);
    if (kind == OptimizerKind::sgd) settings.lr = 0.1;
    const auto trainer = SambaTrainer::create(*executor, trainable(), 3, settings);
    const Array inputs = token_array(4, 16, 11, 0), targets = token_array(4, 16, 11, 1);
    const float before = trainer->stack().loss(inputs, targets);
    for (int step = 0; step < 30; ++step) trainer->train_step(inputs, targets);
    INFO(optimizer_kind_name(kind));
    CHECK(trainer->stack().loss(inputs, targets) < 0.7F * before);
  }
}

// ---- the configuration of a run ----

json run_config(const json& model) {
  return {{"steps", 2}, {"model", model}, {"data", {{"paths", {"t"}}}}, {"batch", {{"rows", 2}, {"length", 16}}}};
}

std::string refusal(const json& config) {
  try {
    parse_train_config(config, "/");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST_CASE("A run's configuration of a general stack is complete when resolved, and parses to itself") {
  json given = run_config(config_to_json(trainable()));
  given["optimizer"] = {{"kind", "sgd"}, {"momentum", 0.5}};
  const TrainConfig config = parse_train_config(given, "/");
  CHECK(config.optimizer.kind == OptimizerKind::sgd);
  CHECK(config.optimizer.momentum == 0.5);
  CHECK(config.optimizer.weight_decay == 0.0);
  const json resolved = resolved_json(config);
  CHECK(resolved["model"] == given["model"]);
  CHECK(resolved["optimizer"] == json({{"kind", "sgd"},
                                       {"lr", 1e-3},
                                       {"momentum", 0.5},
                                       {"dampening", 0.0},
                                       {"nesterov", false},
                                       {"weight_decay", 0.0},
                                       {"max_norm", nullptr}}));
  CHECK(json(resolved_json(parse_train_config(resolved, "/"))) == resolved);
  json other = resolved;
  other["model"]["layers"][2]["dt_limit"][0] = 0.002;
  CHECK(first_difference(resolved, other) == "/model/layers");
}

TEST_CASE("Options of another optimizer are unknown keys, a SambaStack has adamw alone") {
  json config = run_config(config_to_json(trainable()));
  const auto with = [&](const json& optimizer) {
    config["optimizer"] = optimizer;
    return refusal(config);
  };
  CHECK(with({{"kind", "adam"}}) == "accepted");
  CHECK_THAT(with({{"kind", "sgd"}, {"beta1", 0.9}}), Contains("/optimizer/beta1: unknown key; known: kind, lr, mom"));
  CHECK_THAT(with({{"momentum", 0.9}}), Contains("/optimizer/momentum: unknown key"));
  CHECK(with({{"kind", "sgd"}, {"momentum", -1}}) == "/optimizer/momentum: must be a number >= 0, got -1");
  CHECK_THAT(with({{"kind", "sgd"}, {"nesterov", true}}), Contains("/optimizer: nesterov needs momentum"));
  CHECK_THAT(with({{"kind", "sgdm"}}), Contains("/optimizer/kind: must be one of adamw, adam, sgd, got \"sgdm\""));
  config["model"] = {{"vocab", 11}, {"d_model", 32}, {"layers", {"mamba3"}}};
  CHECK_THAT(with({{"kind", "sgd"}}), Contains("/optimizer/kind: must be one of adamw, got \"sgd\""));
  const auto executor = make_executor("cpu", {1, ""});
  CHECK_THROWS_WITH(SambaTrainer::create(*executor, small_config(), 1, settings_of(OptimizerKind::sgd)),
                    Contains("adamw"));
}

TEST_CASE("A stack without a gradient is refused when the run's configuration is read, with place and reason") {
  json integers = config_to_json(small_general_config());
  integers["layers"][4]["numeric_profile"] = "fixed15_v1";
  CHECK_THAT(refusal(run_config(integers)),
             Contains("/model/layers/4/numeric_profile: ") && Contains("for inference only"));
  json long_rows = run_config(config_to_json(trainable()));
  long_rows["batch"]["length"] = 8193;
  CHECK_THAT(refusal(long_rows), Contains("/batch/length: 8193 is more than the 8192 positions"));
}

}  // namespace
}  // namespace samba
