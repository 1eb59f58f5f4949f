// The small MLP in training (spec 50 sections B2 to B4): forward, mean cross-entropy, gradients, AdamW.
//
// A step either completes or leaves parameters, moments and the step counter as they were.
#pragma once

#include <memory>
#include <optional>

#include "samba/blocks/mlp/small_mlp.h"
#include "samba/train/mlp_state.h"

namespace samba {

// Loss and gradients of a batch with the parameters as they are.
struct MlpGradients {
  float loss = 0.0F;
  Array logits;            // (rows, 3)
  ArrayMap gradients;      // weight1, bias1, weight2, bias2
  std::optional<Array> x;  // (rows, 8), when it was asked for
};

struct MlpStep {
  Index step = 0;       // steps completed, this one included
  MlpGradients before;  // with the parameters from before the update
};

class MlpTrainer {
 public:
  // weights: float32 arrays weight1 (16, 8), bias1 (16), weight2 (3, 16), bias2 (3), copied; packed ones are refused.
  // `settings`: lr, beta1, beta2, eps, weight_decay of AdamW; see rounded_mlp_settings() and check_data_schedule() for
  // what is refused.
  MlpTrainer(Executor& executor, const ConstWeightMap& weights, nlohmann::json data_schedule,
             const OptimizerSettings& settings = {});
  // Goes on with a saved state.
  MlpTrainer(Executor& executor, const MlpState& state);

  // X: float32 (rows, 8), 1 to 256 rows, finite; targets: integers of any integer type (rows), 0 to 2. Error(type) "X
  // must be a float32 array", "targets must be an integer array"; Error(value) "X must have shape (batch, 8)", "batch
  // must be in [1, 256]", "X must be finite", "targets must have shape (batch,) with classes 0..2"; of the class
  // "non_finite" when an intermediate value, a gradient, a new parameter or moment is not finite.
  MlpStep train_step(const ConstArray& x, const ConstArray& targets, bool input_gradient = false);

  // The same arithmetic in two calls, for whoever combines gradients: apply_gradients takes exactly the four gradients
  // and returns the steps completed. Error(value) "step counter is exhausted" at 2^31 - 1.
  MlpGradients loss_and_grads(const ConstArray& x, const ConstArray& targets, bool input_gradient = false);
  Index apply_gradients(const ConstArrayMap& gradients);

  // Logits (rows, 3) with the current weights; several batches give theirs one after another.
  Array predict_logits(const ConstArray& x);
  Array predict_logits_sessions(std::span<const ConstArray> batches);

  Index completed_steps() const { return step_; }
  const OptimizerSettings& settings() const { return settings_; }  // float32 values
  const nlohmann::json& data_schedule() const { return data_schedule_; }
  void set_data_schedule(nlohmann::json schedule);  // as in the constructor
  ArrayMap weights() const;                         // copies

  MlpState state() const;
  // Takes over a snapshot; nothing changes when it is refused (check_mlp_state()).
  void load_state(const MlpState& state);

  // Stages of loss_and_grads and train_step: pre1, act, pre2, dlogits, dhidden (docs: spec 50 section B7). May be null.
  void set_stage_recorder(StageRecorder* stages) { stages_ = stages; }

 private:
  void compute_gradients(const ConstArray& x, const ConstArray& targets, bool input_gradient, MlpGradients& result);
  Index upload_input(const ConstArray& x);
  void upload_targets(const ConstArray& targets, Index rows);
  void check_step_counter() const;
  void update();  // one AdamW step with gradients_
  Array download(const float* device, Shape shape) const;

  Executor& executor_;
  OptimizerSettings settings_;
  nlohmann::json data_schedule_;
  Index step_ = 0;
  std::array<std::int32_t, 4> flags_{};
  SmallMlp network_;
  DeviceArray<float> values_;  // parameters, m and v end to end
  DeviceArray<float> next_;    // the same after the step that is being made
  DeviceArray<float> gradients_;
  DeviceArray<float> x_, d_x_;
  DeviceArray<std::int32_t> targets_;
  StageRecorder* stages_ = nullptr;
};

}  // namespace samba
