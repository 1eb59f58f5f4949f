// AdamW, Adam and SGD over flat device buffers (spec 61 section 2).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "samba/core/array.h"
#include "samba/kernels/executor.h"
#include "samba/kernels/optimizer.h"
#include "samba/train/clip.h"
#include "samba/train/gradient_shares.h"
#include "samba/train/schedule.h"

namespace samba {

enum class OptimizerKind { adamw, adam, sgd };

OptimizerKind optimizer_kind(const std::string& name);  // Error(value) for an unknown name
std::string optimizer_kind_name(OptimizerKind kind);

// Hyperparameters as the user gave them; they are rounded to float32 where they are used.
struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::adamw;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  double momentum = 0.0;   // sgd
  double dampening = 0.0;  // sgd
  bool nesterov = false;   // sgd
  bool maximize = false;
  std::optional<double> max_norm;  // absent: no clipping
  Index accumulation_steps = 1;    // a power of two

  static OptimizerSettings defaults(OptimizerKind kind);  // weight_decay 0.01 for adamw, 0 for the others
  bool operator==(const OptimizerSettings&) const = default;
};

// Error(value) that names the hyperparameter.
void check_settings(const OptimizerSettings& settings);

// The scalars of one step (spec 61 section 2 step 4).
struct StepScalars {
  float lr = 0.0F;
  float beta1_pow_t = 0.0F, beta2_pow_t = 0.0F;
  float bias1 = 0.0F, bias2 = 0.0F;  // bc1, bc2
  AdamScalars adam;                  // adamw, adam
  SgdScalars sgd;                    // sgd
};

// `t` is one-based, lr the float32 learning rate of that step.
StepScalars step_scalars(const OptimizerSettings& settings, float lr, Index t);

struct StepReport {
  Index t = 0;                     // steps completed, this one included
  float lr = 0.0F;                 // the learning rate used
  std::optional<ClipReport> clip;  // absent without max_norm
  StepScalars scalars;
};

class RankGroup;

class Optimizer {
 public:
  // `sizes`: elements of each tensor in registry order, at least one tensor and one element each. Moments are +0.
  // `ranks`: this is one of several ranks; it has the moments of the elements that it owns, and only those, and leaves
  // the others' new parameters to them.
  Optimizer(Executor& executor, std::vector<Index> sizes, const OptimizerSettings& settings,
            std::optional<Schedule> schedule = std::nullopt, RankGroup* ranks = nullptr);

  // Leaves tensors as they are from now on, one flag a tensor (at least one false): they get no step and no weight
  // decay, their gradients count in no norm and may be anything, their moments stay. The others have the bits of an
  // optimizer that has only them.
  void freeze(const std::vector<bool>& frozen);

  // One step on device buffers of all tensors laid end to end. `gradient` is clipped in place. A non-finite value is
  // refused (Error(value), class "non_finite"; the message names input.param, input.grad, state.m or state.v, the flat
  // index and NaN or infinity); a refused step changes nothing but possibly `gradient`.
  StepReport step(float* parameters, float* gradient);
  // `parts`: accumulation_steps gradients of one step of `tokens` tokens; the first is overwritten by their tree sum.
  StepReport step_accumulated(float* parameters, std::span<float* const> parts, Index tokens);

  const OptimizerSettings& settings() const { return settings_; }  // lr: after a scheduled step, its float32 value
  const std::optional<Schedule>& schedule() const { return schedule_; }
  const std::vector<Index>& sizes() const { return sizes_; }
  Index total() const { return total_; }
  Index completed_steps() const { return t_; }

  // What the moments below are of, one range behind the other: the whole buffer, or what this rank owns.
  const std::vector<ParameterRange>& ranges() const { return ranges_; }
  Index moment_elements() const { return exp_avg_.size(); }
  // Device buffers of moment_elements() floats. exp_avg_sq is null for sgd, whose exp_avg is the momentum buffer.
  float* exp_avg() { return exp_avg_.data(); }
  const float* exp_avg() const { return exp_avg_.data(); }
  float* exp_avg_sq() { return exp_avg_sq_.data(); }
  const float* exp_avg_sq() const { return exp_avg_sq_.data(); }
  const std::vector<std::int32_t>& buffer_initialized() const { return buffer_initialized_; }  // one a tensor

  // Takes over a saved state: moments of moment_elements() floats and one flag a tensor.
  void restore(Index completed_steps, DeviceArray<float> exp_avg, DeviceArray<float> exp_avg_sq,
               std::vector<std::int32_t> buffer_initialized);

 private:
  void refuse_non_finite(const float* parameters, const float* gradient) const;
  void clip(float* gradient, StepReport& report);
  // Updates ranges_[r], whose moments begin at `moment`.
  void update(const StepScalars& scalars, std::size_t r, Index moment, const float* gradient, float* parameters);

  Executor& executor_;
  std::vector<Index> sizes_;
  Index total_ = 0;
  OptimizerSettings settings_;
  std::optional<Schedule> schedule_;
  Index t_ = 0;
  DeviceArray<float> exp_avg_;
  DeviceArray<float> exp_avg_sq_;
  std::vector<std::int32_t> buffer_initialized_;
  std::vector<ParameterRange> ranges_;
  std::vector<bool> frozen_;     // one a tensor
  std::vector<TensorRun> runs_;  // of the tensors that are not frozen
  RankGroup* ranks_ = nullptr;
};

}  // namespace samba
