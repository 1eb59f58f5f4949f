// The forward of a stack: stateless, ragged, with a state (spec 60 sections 4 to 6).
#include <algorithm>
#include <numeric>
#include <utility>

#include "samba/core/error.h"
#include "samba/model/samba_stack_impl.h"

namespace samba {

void SambaStack::Impl::check_call(const SambaState* state, Index batch, Index length) const {
  if (state != nullptr) {
    if (state->batch_size_ != batch) {
      refuse_value("the state is for a batch of " + std::to_string(state->batch_size_) + " rows, got a batch of " +
                   std::to_string(batch));
    }
    if (state->config_ != config) refuse_value("the state belongs to a stack of another configuration");
    if (state->numeric_mode_ != executor.numeric_mode()) {
      refuse_value("the state was made in the numeric mode " + std::string(numeric_mode_name(state->numeric_mode_)) +
                   ", the stack computes in " + std::string(numeric_mode_name(executor.numeric_mode())));
    }
    if (state->broken_) {
      refuse_value("the state is not usable: a call on it failed midway; reset it or allocate a new one");
    }
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i]->check_call(state == nullptr ? nullptr : state->layers_[i].get(), length);
  }
}

float* SambaStack::Impl::run_layers(std::span<const std::int32_t> ids, Index batch, Index length, SambaState* state) {
  const Index rows = batch * length;
  const Index count = rows * config.d_model;
  std::int32_t* device_ids = workspace.ints(rows);
  executor.memory().copy_to_device(device_ids, ids.data(), ids.size_bytes());
  float* hidden = workspace.floats(count);
  float* next = workspace.floats(count);
  const std::initializer_list<Index> shape = {batch, length, config.d_model};
  embed(batch, length, device_ids, hidden);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i]->forward(batch, length, hidden, next, state == nullptr ? nullptr : state->layers_[i].get(), workspace,
                       nullptr);
    std::swap(hidden, next);
    if (recorder != nullptr) record("layer" + std::to_string(i) + ".out", shape, hidden);
  }
  return hidden;
}

void SambaStack::Impl::embed(Index batch, Index length, const std::int32_t* device_ids, float* hidden) {
  const Index rows = batch * length;
  const WeightView table = embedding();
  if (use == Use::inference && !is_stored(0)) {
    executor.linear().gather_rows(*head, rows, device_ids, hidden);
  } else if (table.is_packed()) {
    executor.embedding().embedding_forward(rows, config.d_model, device_ids, table.packed(), hidden);
  } else {
    executor.embedding().embedding_forward(rows, config.d_model, device_ids, table.values(), hidden);
  }
  record("embed", {batch, length, config.d_model}, hidden);
  if (!config.embedding_scale) return;
  executor.elementwise().scale(rows * config.d_model, *config.embedding_scale, hidden, hidden);
  record("embed_scaled", {batch, length, config.d_model}, hidden);
}

void SambaStack::Impl::require_finite_hidden(Index rows, const float* hidden) {
  const bool centred = config.final_norm == TransformerNorm::layernorm;
  require_finite(centred ? "layer_norm input" : "rms_norm input", rows * config.d_model, hidden);
}

void SambaStack::Impl::final_norm(Index rows, const float* hidden, float* normed) {
  const Index width = config.d_model;
  require_finite_hidden(rows, hidden);
  if (config.final_norm == TransformerNorm::layernorm) {
    const float* bias = config.final_norm_bias ? weight(registry.final_norm() + 1).values() : nullptr;
    executor.norm().layer_norm_block(rows, width, config.norm_eps, hidden, norm_weight(), bias, normed, nullptr);
  } else {
    const bool offset = config.final_norm == TransformerNorm::rmsnorm_offset;
    executor.norm().rms_norm_forward(rows, width, config.norm_eps, offset, hidden, norm_weight(), normed, nullptr,
                                     nullptr);
  }
}

SambaStack::Impl::Head SambaStack::Impl::run_head(Index batch, Index length, const float* hidden, bool for_gradient) {
  const Index rows = batch * length;
  const Index cells = rows * config.vocab;
  Head result;
  result.normed = workspace.floats(rows * config.d_model);
  result.logits = workspace.floats(cells);
  final_norm(rows, hidden, result.normed);
  record("norm_f", {batch, length, config.d_model}, result.normed);
  require_finite("linear input", rows * config.d_model, result.normed);
  executor.linear().linear(*head, rows, result.normed, result.logits);
  if (config.logits_softcap) {
    record("logits_uncapped", {batch, length, config.vocab}, result.logits);
    if (for_gradient) result.squashed = workspace.floats(cells);
    executor.elementwise().softcap_forward(cells, *config.logits_softcap, result.logits, result.squashed,
                                           result.logits);
  }
  record("logits", {batch, length, config.vocab}, result.logits);
  return result;
}

namespace {

// Marks the state as unusable until the call that advances it has come to its end.
class AdvancingState {
 public:
  AdvancingState(bool* broken, Index* tokens, Index length) : broken_(broken), tokens_(tokens), length_(length) {
    if (broken_ != nullptr) *broken_ = true;
  }
  void done() {
    if (broken_ == nullptr) return;
    *broken_ = false;
    *tokens_ += length_;
  }

 private:
  bool* broken_;
  Index* tokens_;
  Index length_;
};

void require_size(const char* name, std::size_t given, Index wanted) {
  if (given != static_cast<std::size_t>(wanted)) {
    refuse_value(std::string(name) + " must have " + std::to_string(wanted) + " elements, got " +
                 std::to_string(given));
  }
}

}  // namespace

const float* SambaStack::forward_device(std::span<const std::int32_t> ids, Index batch, Index length,
                                        SambaState* state) {
  const Impl::InUse guard(*impl_);
  if (batch < 1 || length < 1) {
    refuse_value("ids must have at least one row and one token, got the shape " + shape_text({batch, length}));
  }
  require_size("ids", ids.size(), batch * length);
  check_ids(ids, impl_->config.vocab);
  impl_->check_call(state, batch, length);
  Workspace::Scope scope(impl_->workspace);
  AdvancingState advancing(state == nullptr ? nullptr : &state->broken_, state == nullptr ? nullptr : &state->tokens_,
                           length);
  const float* hidden = impl_->run_layers(ids, batch, length, state);
  const float* logits = impl_->run_head(batch, length, hidden, false).logits;
  advancing.done();
  return logits;
}

template <class Layers>
void SambaStack::Impl::run_step(Index rows, const Layers& layers, std::span<float> logits) {
  DecodeStep step(executor, recorder == nullptr, workspace);
  struct Current {
    DecodeStep*& place;
    ~Current() { place = nullptr; }
  } const current{decode_step};
  decode_step = &step;
  const float* device = run_head(rows, 1, layers(), false).logits;
  step.run();
  executor.memory().copy_to_host(logits.data(), device, logits.size_bytes());
}

void SambaStack::step(std::span<const std::int32_t> ids, SambaState& state, std::span<float> logits) {
  Impl& impl = *impl_;
  const Impl::InUse guard(impl);
  const auto batch = static_cast<Index>(ids.size());
  require_size("logits", logits.size(), batch * impl.config.vocab);
  if (batch < 1) refuse_value("ids must have at least one row, got none");
  check_ids(ids, impl.config.vocab);
  impl.check_call(&state, batch, 1);
  Workspace::Scope scope(impl.workspace);
  AdvancingState advancing(&state.broken_, &state.tokens_, 1);
  impl.run_step(
      batch, [&] { return impl.run_layers(ids, batch, 1, &state); }, logits);
  advancing.done();
}

void SambaStack::step_rows(std::span<const std::int32_t> ids, std::span<SambaState* const> states,
                           std::span<float> logits) {
  Impl& impl = *impl_;
  const Impl::InUse guard(impl);
  const auto rows = static_cast<Index>(states.size());
  const Index width = impl.config.d_model;
  if (rows < 1) refuse_value("states must have at least one row, got none");
  require_size("ids", ids.size(), rows);
  require_size("logits", logits.size(), rows * impl.config.vocab);
  check_ids(ids, impl.config.vocab);
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (std::find(states.begin(), states.begin() + static_cast<std::ptrdiff_t>(i), states[i]) !=
        states.begin() + static_cast<std::ptrdiff_t>(i)) {
      refuse_value("states: row " + std::to_string(i) + " has the state of an earlier row");
    }
    impl.check_call(states[i], 1, 1);
  }
  Workspace::Scope scope(impl.workspace);
  std::vector<AdvancingState> advancing;
  for (SambaState* state : states) advancing.emplace_back(&state->broken_, &state->tokens_, 1);
  std::vector<BlockState*> layer(states.size());
  const auto layers = [&] {
    std::int32_t* device_ids = impl.workspace.ints(rows);
    impl.executor.memory().copy_to_device(device_ids, ids.data(), ids.size_bytes());
    float* hidden = impl.workspace.floats(rows * width);
    float* next = impl.workspace.floats(rows * width);
    impl.embed(rows, 1, device_ids, hidden);
    for (std::size_t i = 0; i < impl.blocks.size(); ++i) {
      for (std::size_t row = 0; row < states.size(); ++row) layer[row] = states[row]->layers_[i].get();
      impl.blocks[i]->step_rows(layer, hidden, next, impl.workspace);
      std::swap(hidden, next);
    }
    return hidden;
  };
  impl.run_step(rows, layers, logits);
  for (AdvancingState& one : advancing) one.done();
}

void SambaStack::prefill(std::span<const std::int32_t> ids, Index length, SambaState& state,
                         std::span<float> last_logits) {
  const Index batch = state.batch_size();
  const Index width = impl_->config.d_model;
  const Impl::InUse guard(*impl_);
  if (length < 1) refuse_value("length must be at least 1, got " + std::to_string(length));
  require_size("ids", ids.size(), batch * length);
  require_size("last_logits", last_logits.size(), batch * impl_->config.vocab);
  check_ids(ids, impl_->config.vocab);
  impl_->check_call(&state, batch, length);
  Workspace::Scope scope(impl_->workspace);
  AdvancingState advancing(&state.broken_, &state.tokens_, length);
  const float* hidden = impl_->run_layers(ids, batch, length, &state);
  impl_->require_finite_hidden(batch * length, hidden);
  // Every token row of the norm and of the head is independent: the last rows alone give the same bits.
  float* last = impl_->workspace.floats(batch * width);
  for (Index row = 0; row < batch; ++row) {
    impl_->executor.memory().copy(last + row * width, hidden + ((row + 1) * length - 1) * width,
                                  static_cast<std::size_t>(width) * sizeof(float));
  }
  const float* logits = impl_->run_head(batch, 1, last, false).logits;
  impl_->executor.memory().copy_to_host(last_logits.data(), logits, last_logits.size_bytes());
  advancing.done();
}

Array SambaStack::forward(ConstArray ids) {
  const TokenBatch batch = checked_ids(ids, impl_->config.vocab);
  const float* logits = forward_device(batch.ids, batch.rows, batch.length, nullptr);
  Array result = Array::zeros({batch.rows, batch.length, impl_->config.vocab});
  impl_->executor.memory().copy_to_host(result.data(), logits, result.byte_size());
  return result;
}

Array SambaStack::forward(ConstArray ids, std::span<const Index> lengths) {
  const TokenBatch batch = checked_ragged_ids(ids, lengths, impl_->config.vocab);
  const float* logits = forward_device(batch.ids, batch.rows, batch.length, nullptr);
  const Index vocab = impl_->config.vocab;
  Array result = Array::zeros({batch.rows, batch.length, vocab});
  for (Index row = 0; row < batch.rows; ++row) {  // the padding stays +0
    const Index first = row * batch.length * vocab;
    const Index real = lengths[static_cast<std::size_t>(row)] * vocab;
    impl_->executor.memory().copy_to_host(result.floats().data() + first, logits + first,
                                          static_cast<std::size_t>(real) * sizeof(float));
  }
  return result;
}

Array SambaStack::forward(ConstArray ids, SambaState& state) {
  const TokenBatch batch = checked_ids(ids, impl_->config.vocab);
  const float* logits = forward_device(batch.ids, batch.rows, batch.length, &state);
  Array result = Array::zeros({batch.rows, batch.length, impl_->config.vocab});
  impl_->executor.memory().copy_to_host(result.data(), logits, result.byte_size());
  return result;
}

Array SambaStack::forward(ConstArray, SambaState&, std::span<const Index>) {
  refuse_value("lengths cannot be used together with a state: a ragged batch is for the stateless forward only");
}

Array SambaStack::step(ConstArray ids, SambaState& state) {
  const TokenBatch batch = checked_step_ids(ids, impl_->config.vocab);
  Array result = Array::zeros({batch.rows, impl_->config.vocab});
  step(std::span<const std::int32_t>(batch.ids), state, result.floats());
  return result;
}

Array SambaStack::step(ConstArray) { refuse_value("a state is required: allocate_state makes one"); }

}  // namespace samba
