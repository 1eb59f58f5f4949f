// Loss and gradients of a stack (spec 60 section 7).
#include <algorithm>

#include "samba/blocks/keeping_block.h"
#include "samba/blocks/refusals.h"
#include "samba/core/error.h"
#include "samba/kernels/extended_gradients.h"
#include "samba/model/samba_stack_impl.h"
#include "samba/numerics/float32.h"
#include "samba/numerics/generator.h"

namespace samba {

namespace {

constexpr Index kMostItems = 16777216;
constexpr Index kMostRows = 4000000;
constexpr Index kMostDropoutOffset = 2147483647;

void check_rows(Index rows) {
  if (rows > kMostRows) {
    refuse_value("a loss is over at most " + std::to_string(kMostRows) + " tokens, got " + std::to_string(rows));
  }
}

}  // namespace

ActivationPlan SambaStack::Impl::activation_plan(Index rows) const {
  std::vector<Index> store_floats;
  for (const auto& block : blocks) {
    const auto* keeping = dynamic_cast<const KeepingBlock*>(block.get());
    store_floats.push_back(keeping != nullptr ? keeping->kept_floats(rows) : 0);
  }
  return plan_activations(rows * config.d_model, store_floats, activation_budget);
}

void SambaStack::set_activation_budget(std::optional<Index> bytes) {
  if (bytes && *bytes < 0) {
    refuse_value("activation_budget_bytes must be at least 0, got " + std::to_string(*bytes));
  }
  const Impl::InUse guard(*impl_);
  impl_->activation_budget = bytes;
}

Index SambaStack::activation_bytes(Index rows) const {
  return impl_->activation_plan(rows).floats * static_cast<Index>(sizeof(float));
}

SambaStack::Impl::Kept SambaStack::Impl::take_tape(Index rows) {
  const ActivationPlan plan = activation_plan(rows);
  const Index count = rows * config.d_model;
  const std::size_t layers = blocks.size();
  Kept kept;
  kept.segment = static_cast<std::size_t>(plan.segment);
  std::vector<float*> within;  // the inputs of a segment behind its first
  for (std::size_t i = 1; i < std::min(kept.segment, layers); ++i) within.push_back(workspace.floats(count));
  for (std::size_t i = 0; i < layers; ++i) {
    const std::size_t place = i % kept.segment;
    kept.inputs.push_back(place == 0 ? workspace.floats(count) : within[place - 1]);
  }
  kept.inputs.push_back(workspace.floats(count));
  for (std::size_t i = 0; i < layers; ++i) {
    const bool has_store = plan.has_store[i];
    kept.stores.push_back(has_store ? workspace.floats(dynamic_cast<KeepingBlock&>(*blocks[i]).kept_floats(rows))
                                    : nullptr);
  }
  return kept;
}

SambaStack::Impl::Kept SambaStack::Impl::run_layers_keeping(const std::int32_t* device_ids, Index batch, Index length,
                                                            const DropoutKey* dropout) {
  const Index count = batch * length * config.d_model;
  const std::initializer_list<Index> shape = {batch, length, config.d_model};
  Kept kept = take_tape(batch * length);
  const std::vector<float*>& inputs = kept.inputs;
  embed(batch, length, device_ids, inputs[0]);
  if (dropout != nullptr) {
    executor.random().dropout(*dropout, count, inputs[0], inputs[0]);
    record("dropout", shape, inputs[0]);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (kept.stores[i] != nullptr) {
      auto& block = dynamic_cast<KeepingBlock&>(*blocks[i]);
      block.forward_keeping(batch, length, inputs[i], inputs[i + 1], kept.stores[i], workspace);
    } else {
      blocks[i]->forward(batch, length, inputs[i], inputs[i + 1], nullptr, workspace, nullptr);
    }
    if (recorder != nullptr) record("layer" + std::to_string(i) + ".out", shape, inputs[i + 1]);
  }
  return kept;
}

void SambaStack::Impl::recompute_segment(Index batch, Index length, const Kept& kept, std::size_t first,
                                         std::size_t end) {
  for (std::size_t i = first; i + 1 < end; ++i) {
    blocks[i]->forward(batch, length, kept.inputs[i], kept.inputs[i + 1], nullptr, workspace, nullptr);
  }
}

// In place: d_hidden is the gradient of the layer's output, then of its input.
void SambaStack::Impl::layer_backward(Index batch, Index length, const Kept& kept, std::size_t layer, float* d_hidden,
                                      float* gradient) {
  std::vector<float*> weight_gradients;
  for (std::size_t j = registry.layer_first(layer); j < registry.layer_first(layer + 1); ++j) {
    weight_gradients.push_back(gradient + registry.tensors()[j].offset);
  }
  Block& block = *blocks[layer];
  if (kept.stores[layer] != nullptr) {
    dynamic_cast<KeepingBlock&>(block).backward_from(batch, length, kept.inputs[layer], kept.stores[layer], d_hidden,
                                                     d_hidden, weight_gradients, workspace, nullptr);
  } else {
    block.backward(batch, length, kept.inputs[layer], d_hidden, d_hidden, weight_gradients, workspace, nullptr);
  }
}

float SambaStack::Impl::cross_entropy(Index rows, const float* logits, std::span<const std::int32_t> targets,
                                      float divisor, float* d_logits, bool undivided) {
  std::int32_t* device_targets = workspace.ints(rows);
  executor.memory().copy_to_device(device_targets, targets.data(), targets.size_bytes());
  float* row_loss = workspace.floats(rows);
  require_finite("logits", rows * config.vocab, logits);
  const CrossEntropyShape shape{rows, config.vocab, kIgnoredTarget, 0.0F};
  executor.loss().cross_entropy(shape, logits, device_targets, divisor, row_loss, d_logits, {});
  record("row_loss", {rows}, row_loss);
  const float sum = executor.linear().sum(rows, row_loss);
  const float loss = undivided ? sum : div(sum, divisor);
  if (!is_finite(loss)) {
    throw Error(ErrorKind::value, kNonFiniteClass,
                std::string("the loss is ") + (is_nan(loss) ? "NaN" : "infinite") + " although the logits are finite");
  }
  return loss;
}

float SambaStack::loss(ConstArray inputs, ConstArray targets) {
  const Impl::InUse guard(*impl_);
  impl_->refuse_if_inference("loss");
  const TokenBatch ids = checked_ids(inputs, impl_->config.vocab, "inputs");
  const TokenBatch classes = checked_targets(targets, ids, impl_->config.vocab);
  const Index rows = ids.rows * ids.length;
  check_rows(rows);
  const Index counted = counted_targets(classes.ids);
  if (counted == 0) refuse_value("targets: a mean loss needs at least one target that is not ignored, all are");
  impl_->check_call(nullptr, ids.rows, ids.length);
  Workspace::Scope scope(impl_->workspace);
  const float* hidden = impl_->run_layers(ids.ids, ids.rows, ids.length, nullptr);
  const float* logits = impl_->run_head(ids.rows, ids.length, hidden, false).logits;
  return impl_->cross_entropy(rows, logits, classes.ids, static_cast<float>(counted), nullptr);
}

LossAndGradients SambaStack::loss_and_grads(ConstArray inputs, ConstArray targets, const GradientOptions& options) {
  impl_->refuse_if_inference("loss_and_grads");
  const TokenBatch ids = checked_ids(inputs, impl_->config.vocab, "inputs");
  const TokenBatch classes = checked_targets(targets, ids, impl_->config.vocab);
  DeviceArray<float> gradient(impl_->executor.memory(), impl_->registry.total());
  LossAndGradients result;
  result.loss = loss_and_grads_device(ids.ids, classes.ids, ids.rows, ids.length, options, gradient.data());
  result.gradients = Array::zeros({impl_->registry.total()});
  gradient.download(result.gradients.floats().data());
  return result;
}

float SambaStack::loss_and_grads_device(std::span<const std::int32_t> inputs, std::span<const std::int32_t> targets,
                                        Index batch, Index length, const GradientOptions& options, float* gradient) {
  Impl& impl = *impl_;
  const Impl::InUse guard(impl);
  impl.refuse_if_inference("loss_and_grads");
  refuse_backward_mode(impl.executor.numeric_mode());
  const Index rows = batch * length;
  const Index width = impl.config.d_model;
  const Index vocab = impl.config.vocab;
  if (batch < 1 || length < 1 || inputs.size() != static_cast<std::size_t>(rows) || targets.size() != inputs.size()) {
    refuse_value("inputs and targets must have batch * length elements, got " + std::to_string(inputs.size()) +
                 " and " + std::to_string(targets.size()) + " for the shape " + shape_text({batch, length}));
  }
  check_rows(rows);
  check_ids(inputs, vocab, "inputs");
  check_targets(targets, vocab);
  const Index items = options.num_items ? *options.num_items : counted_targets(targets);
  if ((options.num_items && items < 1) || items > kMostItems) {
    refuse_value("num_items must be in [1, " + std::to_string(kMostItems) + "], got " + std::to_string(items));
  }
  if (options.token_offset < 0 || options.token_offset > kMostDropoutOffset / width) {
    refuse_value("token_offset * d_model must be in [0, " + std::to_string(kMostDropoutOffset) +
                 "], got token_offset " + std::to_string(options.token_offset));
  }
  impl.check_call(nullptr, batch, length);

  Workspace::Scope scope(impl.workspace);
  Executor& executor = impl.executor;
  const bool drops = options.dropout.has_value() && impl.config.dropout > 0.0F;
  DropoutKey key;
  if (drops) {
    const DropoutScale scale = dropout_scale(static_cast<double>(impl.config.dropout));
    key = {options.dropout->seed, options.dropout->stream, static_cast<std::uint64_t>(options.token_offset * width),
           scale.p, scale.scale};
  }
  std::int32_t* device_ids = impl.workspace.ints(rows);
  executor.memory().copy_to_device(device_ids, inputs.data(), inputs.size_bytes());
  const Impl::Kept kept = impl.run_layers_keeping(device_ids, batch, length, drops ? &key : nullptr);
  const Impl::Head head = impl.run_head(batch, length, kept.inputs.back(), true);
  const float divisor = static_cast<float>(items > 0 ? items : 1);
  float* d_logits = head.logits;  // in place
  const bool part = static_cast<bool>(options.embedding_rows);
  const float loss = impl.cross_entropy(rows, head.logits, targets, divisor, d_logits, part);
  impl.record("dlogits", {batch, length, vocab}, d_logits);
  impl.backward(device_ids, batch, length, kept, head, d_logits, drops ? &key : nullptr, options, gradient);
  return loss;
}

void SambaStack::Impl::backward(const std::int32_t* device_ids, Index batch, Index length, const Kept& kept,
                                const Head& head_values, float* d_logits, const DropoutKey* dropout,
                                const GradientOptions& options, float* gradient) {
  const Index rows = batch * length;
  const Index width = config.d_model;
  const std::initializer_list<Index> shape = {batch, length, width};
  const auto gradient_of = [&](std::size_t index) { return gradient + registry.tensors()[index].offset; };
  const auto tell = [&](std::size_t first, std::size_t end) {
    if (!options.ready) return;
    const Index begin = registry.tensors()[first].offset;
    options.ready(begin, registry.tensors()[end - 1].offset + registry.tensors()[end - 1].size - begin);
  };

  if (head_values.squashed != nullptr) {
    executor.elementwise().softcap_backward(rows * config.vocab, head_values.squashed, d_logits, d_logits);
    record("d_logits_uncapped", {batch, length, config.vocab}, d_logits);
  }
  float* d_hidden = workspace.floats(rows * width);
  float* d_head = gradient_of(registry.head());
  executor.linear().gemm(Layout::nn, rows, width, config.vocab, d_logits, head_weight(), d_hidden);
  executor.linear().gemm(Layout::tn, config.vocab, width, rows, d_logits, head_values.normed, d_head);
  record("d_norm_f_out", shape, d_hidden);
  record("d_head_weight", {config.vocab, width}, d_head);
  if (config.tie_embeddings && options.embedding_rows) tell(0, 1);
  final_norm_backward(rows, kept.inputs.back(), d_hidden, gradient);
  tell(registry.final_norm(), registry.tensors().size());
  if (recorder != nullptr) record("d_layer" + std::to_string(blocks.size() - 1) + ".out", shape, d_hidden);

  for (std::size_t end = blocks.size(); end > 0;) {
    const std::size_t first = (end - 1) / kept.segment * kept.segment;
    if (end != blocks.size()) recompute_segment(batch, length, kept, first, end);
    for (std::size_t i = end; i-- > first;) {
      layer_backward(batch, length, kept, i, d_hidden, gradient);
      if (recorder != nullptr) record("d_layer" + std::to_string(i) + ".in", shape, d_hidden);
      tell(registry.layer_first(i), registry.layer_first(i + 1));
    }
    end = first;
  }
  if (dropout != nullptr) {
    executor.random().dropout(*dropout, rows * width, d_hidden, d_hidden);
    record("d_embed_out", shape, d_hidden);
  }
  if (config.embedding_scale) {
    executor.elementwise().scale(rows * width, *config.embedding_scale, d_hidden, d_hidden);
    record("d_embed_unscaled", shape, d_hidden);
  }
  if (options.embedding_rows) {
    options.embedding_rows(d_hidden);
    return;
  }
  float* lookup = config.tie_embeddings ? workspace.floats(config.vocab * width) : gradient_of(0);
  executor.embedding().embedding_backward(rows, config.vocab, width, device_ids, d_hidden, false, -1, lookup);
  record("d_embed_lookup", {config.vocab, width}, lookup);
  // The lookup gradient is the left operand.
  if (config.tie_embeddings) executor.elementwise().add(config.vocab * width, lookup, d_head, d_head);
  tell(0, 1);
}

// d_hidden is the gradient of the norm's output, then of its input. The offset norm is the norm whose weight is
// F(1 + F(w)), and the gradient of w that of this weight.
void SambaStack::Impl::final_norm_backward(Index rows, const float* hidden, float* d_hidden, float* gradient) {
  const Workspace::Scope scope(workspace);
  const Index width = config.d_model;
  const float* weight = norm_weight();
  float* d_weight = gradient + registry.tensors()[registry.final_norm()].offset;
  if (config.final_norm == TransformerNorm::layernorm) {
    auto* norm = dynamic_cast<NormGradients*>(&executor.norm());
    if (norm == nullptr)
      refuse_unsupported("the executor " + executor.name() + " has no gradient of a final layernorm");
    float* d_bias = config.final_norm_bias ? gradient + registry.tensors()[registry.final_norm() + 1].offset : nullptr;
    norm->layer_norm_block_backward(rows, width, config.norm_eps, hidden, weight, d_hidden, d_hidden, d_weight, d_bias);
    return;
  }
  if (config.final_norm == TransformerNorm::rmsnorm_offset) {
    float* shifted = workspace.floats(width);
    executor.elementwise().add(width, ones.data(), weight, shifted);
    weight = shifted;
  }
  executor.norm().rms_norm_backward(rows, width, config.norm_eps, hidden, weight, d_hidden, d_hidden, d_weight,
                                    nullptr);
}

}  // namespace samba
