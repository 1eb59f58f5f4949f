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
#include "samba/train/rank_group.h"

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
  // `place`: this trainer is one of several ranks that train one model and reach the bits of a trainer alone. All make
  // the same calls with the whole batch of a step, which must have the shape of the place; each computes its share. A
  // step that is refused is refused on every rank (AgreedError). Error(value) for a number of ranks that the step does
  // not admit (rank_split.h).
  SambaTrainer(std::unique_ptr<SambaStack> stack, const Generator& generator, const OptimizerSettings& settings = {},
               std::optional<Schedule> schedule = std::nullopt, const RankPlace& place = {});

  // A new stack with initial values drawn from `seed`.
  static std::unique_ptr<SambaTrainer> create(Executor& executor, const StackConfig& config, std::uint64_t seed,
                                              const OptimizerSettings& settings = {},
                                              std::optional<Schedule> schedule = std::nullopt,
                                              const RankPlace& place = {});

  // Error(resource) where the machine has not the memory for parameters, their layout, gradients and moments.
  static void require_memory(Executor& executor, const StackConfig& config, const OptimizerSettings& settings,
                             const RankPlace& place = {});

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

  RankGroup* ranks() const { return ranks_.get(); }  // null: alone

  // Refused on one of several ranks, which has a share of them only.
  Array exp_avg() const;     // (P,), host copies; of sgd the momentum buffer
  Array exp_avg_sq() const;  // of sgd (0,)

 private:
  struct Batch {  // checked
    TokenBatch inputs;
    TokenBatch targets;
    Index counted = 0;
  };
  Batch check_batch(ConstArray inputs, ConstArray targets) const;
  std::optional<DropoutStream> next_dropout() const;
  // Leaves the combined gradient in gradients_[0]; returns the losses of the microbatches.
  std::vector<float> combined_gradient(const Batch& batch, float& loss);
  // trainer_ranks.cpp: the same for one of several ranks; gradients_[0] then holds the sums where this rank owns them.
  void ranked_gradient(const Batch& batch, float& loss);
  std::vector<float> own_losses(const Batch& batch);
  float combined_loss(const std::vector<float>& own, Index counted) const;
  StepReport optimizer_step();
  void require_alone(const char* call) const;

  std::unique_ptr<SambaStack> stack_;
  Generator generator_;
  std::unique_ptr<RankGroup> ranks_;
  Optimizer optimizer_;
  std::vector<DeviceArray<float>> gradients_;  // log2(microbatches of this process) + 1
};

}  // namespace samba
