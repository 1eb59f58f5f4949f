// The kinds of test/golden/mlp: logits, training with its checkpoint file, and files that are accepted or refused
// (spec 50 part B).
#include "samba/numerics/packed_weight.h"
#include "samba/train/mlp_checkpoint.h"
#include "samba/verify/block_under_test.h"
#include "samba/verify/column_lane.h"
#include "samba/verify/kinds.h"

namespace samba::verify {
namespace {

Array one_float(float value) { return Array::from_floats({1}, std::span(&value, 1)); }

Array bytes_of(const std::string& text) {
  Array bytes(DType::uint8, {static_cast<Index>(text.size())});
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::string_view text_of(const Array& bytes) {
  return {static_cast<const char*>(bytes.data()), static_cast<std::size_t>(bytes.size())};
}

void check_format(RunContext& run, const MlpInference& model, const json& holder) {
  run.check.text("weight_format", std::string(weight_format_name(model.weight_format())),
                 holder.at("weight_format").get<std::string>());
}

void check_step(RunContext& run, const MlpStep& got, const MlpState& after, const json& step) {
  run.expect(step.at("logits"), got.before.logits);
  run.expect(step.at("loss"), one_float(got.before.loss));
  for (const auto& [name, tensor] : step.at("grads").items()) {
    run.expect(tensor, name == "x" ? got.before.x.value() : got.before.gradients.at(name));
  }
  const ArrayMap weights = mlp_arrays(after.weights);
  for (const auto& [name, tensor] : step.at("after").items()) {
    if (name == "m" || name == "v") {
      run.expect(tensor, Array::from_floats({kMlpParameters}, name == "m" ? after.exp_avg : after.exp_avg_sq));
    } else {
      run.expect(tensor, weights.at(name));
    }
  }
}

}  // namespace

void run_mlp_logits(RunContext& run) {
  const ConstWeightMap weights = weights_of_stored(run.test.tensors.with_prefix("w."));
  MlpInference model(run.executor, weights);
  check_format(run, model, run.body());
  run.expect(run.body().at("logits"), model.predict_logits(run.tensor(run.body().at("x"))));
}

void run_mlp_train(RunContext& run) {
  const json& options = run.body().at("options");
  MlpTrainer trainer(run.executor, run.test.tensors.with_prefix("w."),
                     parse_data_schedule(options.at("data_schedule_json").get<std::string>()),
                     optimizer_settings(options));
  // The same steps in two calls, through saved states, must end in the same state.
  MlpTrainer two_calls(run.executor, trainer.state());
  std::size_t number = 0;
  for (const json& step : run.body().at("steps")) {
    StageChecker stages(run, "stage.", "_" + std::to_string(number++));
    const Array& x = run.tensor(step.at("x"));
    const Array& targets = run.tensor(step.at("targets"));
    trainer.set_stage_recorder(&stages);
    const MlpStep got = trainer.train_step(x, targets, true);
    trainer.set_stage_recorder(nullptr);
    check_step(run, got, trainer.state(), step);
    const MlpGradients before = two_calls.loss_and_grads(x, targets);
    ConstArrayMap gradients;
    for (const auto& [name, array] : before.gradients) gradients.emplace(name, array.view());
    run.check.integer("step of apply_gradients", two_calls.apply_gradients(gradients), got.step);
  }
  const Array& want = run.tensor(run.body().at("checkpoint"));
  run.check.array("checkpoint", bytes_of(mlp_checkpoint_bytes(trainer.state())), want);
  run.check.array("checkpoint of the two calls", bytes_of(mlp_checkpoint_bytes(two_calls.state())), want);
  const MlpState again = parse_mlp_checkpoint(text_of(want));
  run.check.array("checkpoint written again", bytes_of(mlp_checkpoint_bytes(again)), want);
}

void run_mlp_checkpoint_variants(RunContext& run) {
  const Array& x = run.tensor(run.body().at("x"));
  const Array& logits = run.tensor(run.body().at("logits"));
  for (const json& variant : run.body().at("variants")) {
    const std::string name = variant.at("name");
    const std::string_view bytes = text_of(run.tensor(variant.at("tensor")));
    for (const char* use : {"train", "inference"}) {
      const std::string where = name + " for " + use;
      const bool trains = std::string_view(use) == "train";
      const auto read = [&] { return parse_mlp_checkpoint(bytes, trains ? MlpReader::trainer : MlpReader::inference); };
      if (!variant.at(use).is_null()) {
        expect_refusal(run.check, where, variant[use], read);
        continue;
      }
      const MlpState state = read();
      run.check.array(where,
                      trains ? MlpTrainer(run.executor, state).predict_logits(x)
                             : MlpInference(run.executor, mlp_arrays(state.weights)).predict_logits(x),
                      logits);
    }
  }
}

// With packed weights everything is computed with the expanded ones; the trainer takes those.
void LaneMlp::make(const json& call) {
  RunContext& run = lane_.run();
  const ConstArrayMap stored = run.test.tensors.with_prefix("w.");
  const ConstWeightMap weights = weights_of_stored(stored);
  inference_ = std::make_unique<MlpInference>(run.executor, weights);
  check_format(run, *inference_, lane_.model());
  trainer_ = std::make_unique<MlpTrainer>(run.executor, expand(weights),
                                          parse_data_schedule(call.at("data_schedule_json").get<std::string>()));
  trainer_->set_stage_recorder(run.trace);
}

void LaneMlp::call(const json& call) {
  const std::string op = call.at("op");
  if (op == "mlp") return make(call);
  if (!trainer_) refuse_corrupt("case", "op '" + op + "' before the op 'mlp'");
  if (op == "mlp_train_step") {
    const MlpStep step = trainer_->train_step(lane_.cut(call, "x"), lane_.cut(call, "targets"));
    lane_.add_if_named(call, "loss", one_float(step.before.loss));
  } else if (op == "mlp_weights") {
    for (auto& [name, array] : trainer_->weights()) {
      lane_.add(call.at("prefix").get<std::string>() + name, copy_of(array));
    }
  } else if (op == "forward") {
    const Array x = lane_.cut(call, "x");
    Array y = trainer_->predict_logits(x);
    // The packed model has these bits too, until the first step.
    if (trainer_->completed_steps() == 0) lane_.run().check.array("inference", inference_->predict_logits(x), y);
    lane_.check_same_as(call, y);
    lane_.add_if_named(call, "y", std::move(y));
  } else if (op == "save_checkpoint") {
    lane_.add(call.at("file"), bytes_of(mlp_checkpoint_bytes(trainer_->state())));
  } else {
    refuse_corrupt("case", "an MLP has no op '" + op + "'");
  }
}

}  // namespace samba::verify
