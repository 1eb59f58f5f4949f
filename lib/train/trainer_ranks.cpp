// A training step of one of several ranks.
#include <new>
#include <string>

#include "samba/core/error.h"
#include "samba/numerics/float32.h"
#include "samba/numerics/fold.h"
#include "samba/train/trainer.h"

namespace samba {

namespace {

// Balanced: adjacent pairs, F(F(left) + F(right)), until one is left.
float pair_sum(std::vector<float> values) {
  for (std::size_t count = values.size(); count > 1; count /= 2) {
    for (std::size_t i = 0; i < count / 2; ++i) values[i] = add(values[2 * i], values[2 * i + 1]);
  }
  return values.front();
}

}  // namespace

void SambaTrainer::require_alone(const char* call) const {
  if (ranks_ != nullptr) refuse_unsupported(std::string(call) + " of one of several ranks; ask a trainer alone");
}

// The losses of this rank's microbatches, or the undivided sum of its part of one; leaves its gradients' sum in
// gradients_[0], parts of which are with the other ranks already.
std::vector<float> SambaTrainer::own_losses(const Batch& batch) {
  const RankSplit& split = ranks_->split();
  const Index length = batch.inputs.length;
  GradientOptions options;
  if (batch.counted > 0) options.num_items = batch.counted;
  options.dropout = next_dropout();

  ElementwiseKernels& elementwise = stack_->executor().elementwise();
  std::vector<float> losses;
  std::size_t depth = 0;  // gradients_[0 .. depth) are waiting: a binary counter
  for (Index k = 0; k < split.microbatches; ++k) {
    const auto first = static_cast<std::size_t>(split.first_row(k) * length);
    const auto count = static_cast<std::size_t>(split.rows * length);
    options.token_offset = split.first_row(k) * length;
    const bool last = k + 1 == split.microbatches;
    if (last) {
      options.ready = [&](Index begin, Index elements) {
        for (std::size_t i = depth; i-- > 0;) {
          float* left = gradients_[i].data() + begin;
          elementwise.add(elements, left, gradients_[i + 1].data() + begin, left);
        }
        stack_->executor().memory().synchronize();
        ranks_->ready(begin, elements);
      };
      if (split.group > 1) options.embedding_rows = [&](const float* rows) { ranks_->embedding_rows(rows); };
    }
    losses.push_back(stack_->loss_and_grads_device(std::span(batch.inputs.ids).subspan(first, count),
                                                   std::span(batch.targets.ids).subspan(first, count), split.rows,
                                                   length, options, gradients_[depth].data()));
    ++depth;
    for (Index rest = k + 1; !last && rest % 2 == 0; rest /= 2) {
      --depth;
      float* left = gradients_[depth - 1].data();
      elementwise.add(stack_->registry().total(), left, gradients_[depth].data(), left);
    }
  }
  return losses;
}

void SambaTrainer::ranked_gradient(const Batch& batch, float& loss) {
  const RankSplit& split = ranks_->split();
  const StepShape& step = ranks_->step();
  if (batch.inputs.rows != step.rows || batch.inputs.length != step.length) {
    refuse_value("the ranks share steps of the shape " + shape_text({step.rows, step.length}) + ", got a batch of " +
                 shape_text({batch.inputs.rows, batch.inputs.length}));
  }
  std::span<const std::int32_t> shared;
  if (split.group > 1) {
    const auto tokens = static_cast<std::size_t>(split.group * split.rows * step.length);
    shared = std::span(batch.inputs.ids).subspan(static_cast<std::size_t>(split.first_microbatch) * tokens, tokens);
  }
  ranks_->begin(gradients_[0].data(), shared);
  std::vector<float> own;
  agreed(&ranks_->communicator(), [&] {
    std::unique_ptr<Error> failure;
    try {
      own = own_losses(batch);
    } catch (const Error& error) {
      if (error.error_class() == kLostRankClass) throw;
      failure = std::make_unique<Error>(error);
    } catch (const std::bad_alloc&) {
      failure = std::make_unique<Error>(ErrorKind::resource, "out of memory");
    }
    ranks_->finish_gradient();  // also after a failure: the others wait for it
    if (failure != nullptr) throw Error(*failure);
  });
  loss = combined_loss(own, batch.counted);
}

float SambaTrainer::combined_loss(const std::vector<float>& own, Index counted) const {
  const RankSplit& split = ranks_->split();
  // Whole microbatches: their losses, in order. Parts: the sums of each microbatch's rows, a subtree a rank.
  const std::vector<float> sums = gather_values(ranks_->communicator(), pair_sum(own));
  if (split.group == 1) return pair_sum(sums);
  std::vector<float> losses;
  for (auto first = sums.begin(); first != sums.end(); first += split.group) {
    losses.push_back(div(pair_sum({first, first + split.group}), static_cast<float>(counted > 0 ? counted : 1)));
  }
  return pair_sum(losses);
}

StepReport SambaTrainer::optimizer_step() {
  float* parameters = stack_->mutable_device_parameters();
  if (ranks_ == nullptr) return optimizer_.step(parameters, gradients_[0].data());
  try {
    return optimizer_.step(parameters, gradients_[0].data());
  } catch (const Error& error) {  // refused by what all ranks know alike
    if (error.error_class() != kNonFiniteClass) throw;
    throw AgreedError(error.kind(), error.error_class(), error.what());
  }
}

}  // namespace samba
