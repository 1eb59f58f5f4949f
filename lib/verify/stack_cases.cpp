// The kinds "stack_train" and "tutorial": a stack from its initial values through forward, gradients, training,
// checkpoints and decoding (spec 60, 62).
#include <set>

#include "samba/core/files.h"
#include "samba/core/sha256.h"
#include "samba/train/checkpoint.h"
#include "samba/verify/block_under_test.h"
#include "samba/verify/kinds.h"
#include "samba/verify/slices.h"
#include "samba/verify/training.h"

namespace samba::verify {
namespace {

// Stages belong to the first microbatch: later records of a name are not compared.
class FirstStages final : public StageRecorder {
 public:
  explicit FirstStages(RunContext& run) : checker_(run, "stage.") {}
  void record(std::string_view name, const Shape& shape, const float* device) override {
    if (seen_.emplace(name).second) checker_.record(name, shape, device);
  }

 private:
  StageChecker checker_;
  std::set<std::string, std::less<>> seen_;
};

void check_registry(RunContext& run, const Registry& registry) {
  json got = json::array();
  for (const ParameterTensor& tensor : registry.tensors()) got.push_back({tensor.name, tensor.shape});
  run.check.text("registry", got.dump(), run.body().at("registry").dump());
}

void check_start(RunContext& run, const SambaTrainer& trainer) {
  const json& start = run.body().at("expect").at("start");
  run.check.text("start params_sha256", trainer.stack().parameters_sha256(), start.at("params_sha256"));
  run.check.text("start rng_counter", std::to_string(trainer.generator().counter()), start.at("rng_counter").dump());
  if (start.contains("n_params")) {
    run.check.integer("parameters", trainer.stack().registry().total(), start["n_params"].get<Index>());
  }
}

void load_recorded_weights(RunContext& run, SambaTrainer& trainer) {
  const ConstArrayMap weights = run.test.tensors.with_prefix("w.");
  if (run.body().at("options").at("weights_are_generator_init").get<bool>()) {
    const ArrayMap drawn = trainer.stack().weights();
    for (const auto& [name, want] : weights) {
      const auto found = drawn.find(name);
      run.check.holds("w." + name, found != drawn.end(), "the stack has no tensor of this name");
      if (found != drawn.end()) run.check.array("initial w." + name, found->second, want);
    }
  }
  trainer.stack().load_weights(weights);
}

// Prefill and then single tokens give the logits of one forward at the same positions.
void check_decode(RunContext& run, SambaStack& stack, const Array& ids, const json& decode) {
  const Array& logits = run.tensor(run.body().at("expect").at("logits"));
  const Index prefill = decode.at("prefill").get<Index>();
  const Index vocab = logits.shape()[2];
  const auto state = stack.allocate_state(ids.shape()[0], ids.shape()[1]);
  run.check.array("logits of the prefill", stack.forward(slice(ids, 1, 0, prefill), *state),
                  slice(logits, 1, 0, prefill));
  for (Index step = 0; step < decode.at("steps").get<Index>(); ++step) {
    const Index at = prefill + step;
    const Array got = stack.step(slice(ids, 1, at, at + 1), *state);
    run.check.array("logits of the step at position " + std::to_string(at), got,
                    reshaped(slice(logits, 1, at, at + 1), {ids.shape()[0], vocab}));
  }
}

void check_evaluation(RunContext& run, SambaTrainer& trainer, const Array& ids, const Array& targets) {
  const json& expect = run.body().at("expect");
  SambaStack& stack = trainer.stack();
  run.expect(expect.at("logits"), stack.forward(ids));
  if (expect.contains("eval_loss_bits")) {
    run.check.bits("eval_loss", stack.loss(ids, targets), expect["eval_loss_bits"]);
  }
  if (expect.contains("ragged")) {
    const json& ragged = expect["ragged"];
    const auto lengths = ragged.at("lengths").get<std::vector<Index>>();
    const Array logits = stack.forward(ids, lengths);
    if (ragged.contains("logits")) run.expect(ragged["logits"], logits);
    run.check.sha256("ragged logits", logits, ragged.at("logits_sha256"));
  }
  if (expect.contains("decode")) check_decode(run, stack, ids, expect["decode"]);
  run.check.text("rng_counter after the evaluation", std::to_string(trainer.generator().counter()),
                 expect.at("start").at("rng_counter").dump());
}

void check_gradients(RunContext& run, SambaTrainer& trainer, const Array& ids, const Array& targets) {
  FirstStages stages(run);
  trainer.stack().set_stage_recorder(&stages);
  const SambaTrainer::StepGradient step = trainer.step_gradient(ids, targets);
  trainer.stack().set_stage_recorder(nullptr);
  const json& losses = run.body().at("expect").at("microbatch_loss_bits");
  run.check.integer("microbatches", static_cast<Index>(step.microbatch_losses.size()),
                    static_cast<Index>(losses.size()));
  for (std::size_t i = 0; i < std::min(losses.size(), step.microbatch_losses.size()); ++i) {
    run.check.bits("loss of microbatch " + std::to_string(i), step.microbatch_losses[i], losses[i]);
  }
  for (const ParameterTensor& tensor : trainer.stack().registry().tensors()) {
    run.expect("grad." + tensor.name,
               reshaped(slice(step.gradient, 0, tensor.offset, tensor.offset + tensor.size), tensor.shape));
  }
}

// Loading the recorded file and taking the remaining steps gives the same records.
void check_resume(RunContext& run, const TemporaryFolder& folder, SambaStack& uninterrupted) {
  const json& expect = run.body().at("expect");
  const json& checkpoint = expect.at("checkpoint");
  const auto recorded = run.test.folder() / checkpoint.at("file").get<std::string>();
  const auto after = checkpoint.at("after_step").get<std::size_t>();
  const auto trainer = load_for_training(run.executor, recorded);
  check_checkpoint_file(run.check, *trainer, folder / "again", checkpoint, "saved right after loading");
  const auto inference = load_for_inference(run.executor, recorded);
  const json& steps = run.body().at("steps");
  const Array& ids = run.tensor(steps[0].at("ids"));
  run.check.array("logits of the inference stack", inference->forward(ids), trainer->stack().forward(ids));
  for (std::size_t i = after; i < steps.size(); ++i) {
    check_step(run.check, *trainer, run.tensor(steps[i].at("ids")), run.tensor(steps[i].at("targets")), steps[i],
               "resumed steps/" + std::to_string(i + 1));
  }
  check_checkpoint_file(run.check, *trainer, folder / "resumed", expect.at("final_checkpoint"), "resumed checkpoint");
  run.check.array("resumed logits", trainer->stack().forward(ids), uninterrupted.forward(ids));
}

}  // namespace

void run_stack_train(RunContext& run) {
  const json& body = run.body();
  const json& expect = body.at("expect");
  const auto trainer = make_trainer(run.executor, config_from_json(body.at("config")), body.at("options"));
  check_registry(run, trainer->stack().registry());
  load_recorded_weights(run, *trainer);
  check_start(run, *trainer);
  const json& steps = body.at("steps");
  const Array& ids = run.tensor(steps[0].at("ids"));
  const Array& targets = run.tensor(steps[0].at("targets"));
  Index counted = 0;
  for (const std::int32_t target : targets.values<std::int32_t>()) counted += target != kIgnoredTarget ? 1 : 0;
  run.check.integer("target_count", counted, expect.at("target_count").get<Index>());
  check_evaluation(run, *trainer, ids, targets);
  check_gradients(run, *trainer, ids, targets);

  const TemporaryFolder folder;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    check_step(run.check, *trainer, run.tensor(steps[i].at("ids")), run.tensor(steps[i].at("targets")), steps[i],
               "steps/" + std::to_string(i + 1));
    if (!expect.contains("checkpoint") || expect["checkpoint"].at("after_step").get<std::size_t>() != i + 1) continue;
    check_checkpoint_file(run.check, *trainer, folder / "middle", expect["checkpoint"], "checkpoint");
  }
  check_checkpoint_file(run.check, *trainer, folder / "final", expect.at("final_checkpoint"), "final checkpoint");
  if (expect.contains("final")) {
    run.expect(expect["final"].at("params"), trainer->stack().parameters());
    run.expect(expect["final"].at("exp_avg"), trainer->exp_avg());
    run.expect(expect["final"].at("exp_avg_sq"), trainer->exp_avg_sq());
  }
  if (expect.contains("checkpoint")) check_resume(run, folder, trainer->stack());
}

void run_tutorial(RunContext& run) {
  const json& body = run.body();
  const json& expect = body.at("expect");
  const std::string text = read_file(run.test.folder() / body.at("text").at("file").get<std::string>());
  run.check.text("text SHA-256", sha256_hex(text), body["text"].at("sha256"));
  const auto trainer = make_trainer(run.executor, config_from_json(body.at("config")), body.at("options"));
  check_start(run, *trainer);

  const Array& starts = run.tensor(body.at("start_positions"));
  const Index batch = run.dim("batch");
  const Index length = run.dim("length");
  const json& steps = body.at("steps");
  const std::size_t most = std::min(steps.size(), run.options.most_tutorial_steps.value_or(steps.size()));
  for (std::size_t k = 0; k < most; ++k) {
    Array ids(DType::int32, {batch, length});
    Array targets(DType::int32, {batch, length});
    for (std::size_t i = 0; i < static_cast<std::size_t>(batch * length); ++i) {
      const std::size_t row = i / static_cast<std::size_t>(length);
      const auto start =
          static_cast<std::size_t>(starts.values<std::int32_t>()[k * static_cast<std::size_t>(batch) + row]);
      const std::size_t position = start + i % static_cast<std::size_t>(length);
      ids.values<std::int32_t>()[i] = static_cast<unsigned char>(text.at(position));
      targets.values<std::int32_t>()[i] = static_cast<unsigned char>(text.at(position + 1));
    }
    check_step(run.check, *trainer, ids, targets, steps[k], "steps/" + std::to_string(k + 1));
  }
  if (most < steps.size()) return;
  const TemporaryFolder folder;
  check_checkpoint_file(run.check, *trainer, folder / "final", expect.at("final_checkpoint"), "final checkpoint");
  const Array& tokens = run.tensor(expect.at("greedy_tokens"));
  const Greedy greedy =
      decode_greedily(trainer->stack(), run.tensor(body.at("prompt")).values<std::int32_t>(), tokens.size());
  run.expect(expect.at("greedy_logits"), greedy.logits);
  run.expect(expect.at("greedy_tokens"), greedy.tokens);
}

}  // namespace samba::verify
