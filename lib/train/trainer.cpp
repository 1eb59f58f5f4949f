#include "samba/train/trainer.h"

#include <algorithm>
#include <string>

#include "samba/blocks/refusals.h"
#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/core/resident.h"
#include "samba/numerics/float32.h"
#include "samba/train/accumulate.h"

namespace samba {

namespace {

std::unique_ptr<RankGroup> make_ranks(const RankPlace& place, SambaStack& stack, const OptimizerSettings& settings) {
  if (place.ranks == nullptr || place.ranks->size() == 1) return nullptr;
  check_settings(settings);
  return std::make_unique<RankGroup>(place, stack.executor(), stack.registry(), stack.config(),
                                     settings.accumulation_steps);
}

}  // namespace

SambaTrainer::SambaTrainer(std::unique_ptr<SambaStack> stack, const Generator& generator,
                           const OptimizerSettings& settings, std::optional<Schedule> schedule, const RankPlace& place)
    : stack_(std::move(stack)),
      generator_(generator),
      ranks_(make_ranks(place, *stack_, settings)),
      optimizer_(stack_->executor(), stack_->registry().sizes(), settings, std::move(schedule), ranks_.get()) {
  refuse_backward_mode(stack_->executor().numeric_mode());
  if (stack_->config().samba && settings.kind != OptimizerKind::adamw) {
    refuse_unsupported("a Samba stack trains with adamw, got " + optimizer_kind_name(settings.kind));
  }
  if (stack_->use() == SambaStack::Use::inference) refuse_unsupported("train_step: inference is forward only");
  // A binary counter of gradients: A parts keep at most log2(A) + 1 of them.
  const Index microbatches = ranks_ == nullptr ? settings.accumulation_steps : ranks_->split().microbatches;
  for (Index pieces = microbatches; pieces > 0; pieces /= 2) {
    gradients_.emplace_back(stack_->executor().memory(), stack_->registry().total());
  }
}

std::unique_ptr<SambaTrainer> SambaTrainer::create(Executor& executor, const StackConfig& config, std::uint64_t seed,
                                                   const OptimizerSettings& settings, std::optional<Schedule> schedule,
                                                   const RankPlace& place) {
  check_settings(settings);
  require_memory(executor, config, settings, place);
  Generator generator(seed);
  auto stack = std::make_unique<SambaStack>(executor, config, generator);
  return std::make_unique<SambaTrainer>(std::move(stack), generator, settings, std::move(schedule), place);
}

void SambaTrainer::require_memory(Executor& executor, const StackConfig& config, const OptimizerSettings& settings,
                                  const RankPlace& place) {
  if (!executor.memory().is_host()) return;
  const Index ranks = place.ranks == nullptr ? 1 : place.ranks->size();
  const auto total = static_cast<std::uint64_t>(Registry(config).total());
  std::uint64_t floats = 2 * total;  // parameters, panels
  floats += (settings.kind == OptimizerKind::sgd ? 1 : 2) * total / static_cast<std::uint64_t>(ranks);  // moments
  for (Index pieces = std::max<Index>(1, settings.accumulation_steps / ranks); pieces > 0; pieces /= 2) floats += total;
  samba::require_memory(floats * sizeof(float), "training a model of " + std::to_string(total) + " parameters");
}

SambaTrainer::Batch SambaTrainer::check_batch(ConstArray inputs, ConstArray targets) const {
  const Index vocab = stack_->config().vocab;
  Batch batch;
  batch.inputs = checked_ids(inputs, vocab, "inputs");
  batch.targets = checked_targets(targets, batch.inputs, vocab);
  const Index pieces = optimizer_.settings().accumulation_steps;
  if (batch.inputs.rows % pieces != 0) {
    refuse_value("the batch rows must be a multiple of accumulation_steps, got " + std::to_string(batch.inputs.rows) +
                 " rows with accumulation_steps " + std::to_string(pieces));
  }
  if (pieces > 1) check_accumulation(batch.inputs.rows * batch.inputs.length, pieces);
  batch.counted = counted_targets(batch.targets.ids);
  return batch;
}

std::optional<DropoutStream> SambaTrainer::next_dropout() const {
  if (!(stack_->config().dropout > 0.0F)) return std::nullopt;
  Generator ahead = generator_;  // refuses an exhausted counter
  return DropoutStream{ahead.seed(), ahead.next_stream()};
}

std::vector<float> SambaTrainer::combined_gradient(const Batch& batch, float& loss) {
  const Index pieces = optimizer_.settings().accumulation_steps;
  const Index rows = batch.inputs.rows / pieces;
  const Index length = batch.inputs.length;
  GradientOptions options;
  if (batch.counted > 0) options.num_items = batch.counted;
  options.dropout = next_dropout();

  std::vector<float> losses;
  std::vector<float> loss_tree;  // the same binary counter as the gradients'
  for (Index k = 0; k < pieces; ++k) {
    const auto first = static_cast<std::size_t>(k * rows * length);
    const auto count = static_cast<std::size_t>(rows * length);
    options.token_offset = k * rows * length;
    float* gradient = gradients_[loss_tree.size()].data();
    losses.push_back(stack_->loss_and_grads_device(std::span(batch.inputs.ids).subspan(first, count),
                                                   std::span(batch.targets.ids).subspan(first, count), rows, length,
                                                   options, gradient));
    loss_tree.push_back(losses.back());
    for (Index rest = k + 1; rest % 2 == 0; rest /= 2) {
      float* left = gradients_[loss_tree.size() - 2].data();
      const float* right = gradients_[loss_tree.size() - 1].data();
      stack_->executor().elementwise().add(stack_->registry().total(), left, right, left);
      const float sum = add(loss_tree[loss_tree.size() - 2], loss_tree.back());
      loss_tree.pop_back();
      loss_tree.back() = sum;
    }
  }
  loss = loss_tree.front();
  return losses;
}

StepResult SambaTrainer::train_step(ConstArray inputs, ConstArray targets) {
  const FloatScope float_scope;
  const Batch batch = check_batch(inputs, targets);
  StepResult result;
  if (ranks_ == nullptr) {
    combined_gradient(batch, result.loss);
  } else {
    ranked_gradient(batch, result.loss);
  }
  if (!is_finite(result.loss)) {
    const char* message = "the loss of the step is not finite";
    if (ranks_ != nullptr) throw AgreedError(ErrorKind::value, kNonFiniteClass, message);
    throw Error(ErrorKind::value, kNonFiniteClass, message);
  }
  const StepReport report = optimizer_step();
  stack_->parameters_changed();
  if (stack_->config().dropout > 0.0F) generator_.next_stream();
  result.step = report.t;
  result.lr = report.lr;
  if (report.clip) result.total_norm = report.clip->total_norm;
  result.counted_targets = batch.counted;
  return result;
}

SambaTrainer::StepGradient SambaTrainer::step_gradient(ConstArray inputs, ConstArray targets) {
  const FloatScope float_scope;
  require_alone("step_gradient");
  const Batch batch = check_batch(inputs, targets);
  StepGradient result;
  result.microbatch_losses = combined_gradient(batch, result.loss);
  result.gradient = Array::zeros({stack_->registry().total()});
  gradients_[0].download(result.gradient.floats().data());
  return result;
}

namespace {

Array host_copy(Executor& executor, Index count, const float* device) {
  Array host = Array::zeros({count});
  executor.memory().copy_to_host(host.data(), device, host.byte_size());
  return host;
}

}  // namespace

Array SambaTrainer::exp_avg() const {
  require_alone("exp_avg");
  return host_copy(stack_->executor(), optimizer_.total(), optimizer_.exp_avg());
}

Array SambaTrainer::exp_avg_sq() const {
  require_alone("exp_avg_sq");
  if (optimizer_.exp_avg_sq() == nullptr) return Array::zeros({0});
  return host_copy(stack_->executor(), optimizer_.total(), optimizer_.exp_avg_sq());
}

}  // namespace samba
