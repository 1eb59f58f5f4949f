// A stack in training: parameters, optimizer, schedule, accumulation, the random stream (spec 60 section 8).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "samba/core/array.h"
#include "samba/model/samba_stack.h"
#include "samba/numerics/generator.h"
#include "samba/train/optimizer.h"

namespace samba {

struct StepResult {
  Index step = 0;  // t, steps completed
  float loss = 0.0F;
  float lr = 0.0F;                  // the learning rate used
  std::optional<float> total_norm;  // before clipping; absent without max_norm
  Index counted_targets = 0;        // targets that are not -100
};

class SambaTrainer {
 public:
  // `generator`: its next stream id is the next step's. A SambaStack has adamw only, a general stack any kind.
  // Gradient and moment memory is taken here.
  SambaTrainer(std::unique_ptr<SambaStack> stack, const Generator& generator, const OptimizerSettings& settings = {},
               std::optional<Schedule> schedule = std::nullopt);

  // A new stack with initial values drawn from `seed`.
  static std::unique_ptr<SambaTrainer> create(Executor& executor, const StackConfig& config, std::uint64_t seed,
                                              const OptimizerSettings& settings = {},
                                              std::optional<Schedule> schedule = std::nullopt);

  // Error(resource) where the machine has not the memory for parameters, their layout, gradients and moments.
  static void require_memory(Executor& executor, const StackConfig& config, const OptimizerSettings& settings);

  // One step on (batch, length) inputs and targets: accumulation_steps microbatches of whole rows, their gradients
  // combined by the tree. A refused step (bad input; a non-finite loss, gradient, parameter or moment: Error(value) of
  // class "non_finite") leaves parameters, moments, counters and the random stream as they were.
  StepResult train_step(ConstArray inputs, ConstArray targets);

  // The gradient of a step as the optimizer would get it, before clipping, and the losses of its microbatches. Takes no
  // stream id: dropout uses the one that the next step will take.
  struct StepGradient {
    std::vector<float> microbatch_losses;
    float loss = 0.0F;
    Array gradient;  // (P,)
  };
  StepGradient step_gradient(ConstArray inputs, ConstArray targets);

  SambaStack& stack() { return *stack_; }
  const SambaStack& stack() const { return *stack_; }
  Optimizer& optimizer() { return optimizer_; }
  const Optimizer& optimizer() const { return optimizer_; }
  const Generator& generator() const { return generator_; }
  Index completed_steps() const { return optimizer_.completed_steps(); }

  Array exp_avg() const;     // (P,), host copies; of sgd the momentum buffer
  Array exp_avg_sq() const;  // of sgd (0,)

 private:
  struct Batch;
  Batch check_batch(ConstArray inputs, ConstArray targets) const;
  std::optional<DropoutStream> next_dropout() const;
  // Leaves the combined gradient in gradients_[0]; returns the losses of the microbatches.
  std::vector<float> combined_gradient(const Batch& batch, float& loss);

  std::unique_ptr<SambaStack> stack_;
  Generator generator_;
  Optimizer optimizer_;
  std::vector<DeviceArray<float>> gradients_;  // log2(accumulation_steps) + 1
};

}  // namespace samba
