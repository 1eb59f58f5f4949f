// The attention half of a transformer block (spec 20 section 3 steps 2 to 13) and its cache (section 5).
#include <algorithm>

#include "samba/blocks/transformer/transformer_call.h"

namespace samba {

namespace {
using W = TransformerWeight;
}

// q, k, v by head: projection, bias, norm of each q and k head, rotation of q and k.
void TransformerBlock::project_heads(const Call& call) {
  const Workspace::Scope scope(call.workspace);
  const TransformerActivations& a = call.a;
  const Index rows = call.rows(), qw = options_.query_width(), kw = options_.key_width();
  float* q = a.q_heads != nullptr ? a.q_heads : call.workspace.floats(rows * qw);
  float* k = a.k_heads != nullptr ? a.k_heads : call.workspace.floats(rows * kw);
  if (groups_ != nullptr) {
    const LinearTerm terms[] = {term(*q_proj_, W::q_bias, q), term(*k_proj_, W::k_bias, k),
                                term(*v_proj_, W::v_bias, a.v)};
    groups_->linear_group(rows, a.norm1, terms);
  } else {
    project(*q_proj_, W::q_bias, rows, a.norm1, q);
    project(*k_proj_, W::k_bias, rows, a.norm1, k);
    project(*v_proj_, W::v_bias, rows, a.norm1, a.v);
  }
  if (options_.qk_norm) {
    float* q_normed = call.workspace.floats(rows * qw);
    float* k_normed = call.workspace.floats(rows * kw);
    normalize_heads(W::q_norm, rows * options_.n_heads, q, q_normed);
    normalize_heads(W::k_norm, rows * options_.n_kv_heads, k, k_normed);
    q = q_normed;
    k = k_normed;
  }
  call.record("q_proj.out", {rows, qw}, q);
  call.record("k_proj.out", {rows, kw}, k);
  call.record("v_proj.out", {rows, kw}, a.v);

  rotate_heads(call, q, k);
  record_inverse_frequencies(call);
  call.record("q_rope.out", {rows, qw}, a.q_rope);
  call.record("k_rope.out", {rows, kw}, a.k_rope);
}

void TransformerBlock::rotate_heads(const Call& call, const float* q, const float* k) {
  const TransformerActivations& a = call.a;
  RopeShape shape{call.batch,        call.length,           options_.n_heads,
                  options_.head_dim, rotary_->rotary_dim(), call.first_position()};
  const auto rotate = [&](Index row) {
    const Index query = row * options_.query_width(), key = row * options_.key_width();
    shape.n_heads = options_.n_heads;
    executor_.rope().rotate(shape, q + query, rotary_->cosines(), rotary_->sines(), a.q_rope + query);
    shape.n_heads = options_.n_kv_heads;
    executor_.rope().rotate(shape, k + key, rotary_->cosines(), rotary_->sines(), a.k_rope + key);
  };
  if (call.row_states.empty()) return rotate(0);
  shape.batch = 1;
  for (Index row = 0; row < call.batch; ++row) {
    shape.first_position = call.row_state(row)->cached_tokens();
    rotate(row);
  }
}

void TransformerBlock::record_inverse_frequencies(const Call& call) {
  if (call.stages == nullptr) return;
  const Workspace::Scope scope(call.workspace);
  float* inverses = call.workspace.floats(rotary_->half());
  executor_.memory().copy_to_device(inverses, rotary_->inverse_frequencies().data(),
                                    static_cast<std::size_t>(rotary_->half()) * sizeof(float));
  call.record("rope.inv_freq", {rotary_->half()}, inverses);
}

void TransformerBlock::normalize_heads(W scale, Index heads, const float* x, float* y) {
  const bool offset = options_.norm == TransformerNorm::rmsnorm_offset;
  executor_.norm().rms_norm_forward(heads, options_.head_dim, options_.norm_eps, offset, x, weight(scale), y, nullptr,
                                    nullptr);
}

AttentionShape TransformerBlock::attention_shape(Index batch, Index length, Index first_position) const {
  AttentionShape shape;
  shape.batch = batch;
  shape.queries = length;
  shape.n_heads = options_.n_heads;
  shape.n_kv_heads = options_.n_kv_heads;
  shape.head_dim = options_.head_dim;
  shape.window = options_.window;
  shape.first_position = first_position;
  shape.softcap = options_.attn_softcap;
  return shape;
}

// Where the span's keys are read from: this call's own rows when nothing is cached; else the cache, into which the new
// rows go first. A chunk under a window is the exception: its early queries see keys the ring will not keep, so the
// span is put together beside the ring, which takes the new rows afterwards.
void TransformerBlock::attend(const Call& call) {
  for (Index row = 0; row < static_cast<Index>(call.row_states.size()); ++row) attend_row(call, row);
  if (!call.row_states.empty()) return;
  const Workspace::Scope scope(call.workspace);
  const TransformerActivations& a = call.a;
  TransformerState* state = call.state;
  const AttentionShape shape = attention_shape(call.batch, call.length, call.first_position());
  AttentionKernels& kernels = executor_.attention();
  const auto store = [&] {
    kernels.store_keys_values(shape, a.k_rope, a.v, state->keys(), state->values(), state->view());
  };

  if (state == nullptr || shape.first_position == 0) {
    KeyValueView view;
    view.keys = a.k_rope;
    view.values = a.v;
    view.slot_stride = options_.key_width();
    view.head_stride = options_.head_dim;
    view.batch_stride = call.length * view.slot_stride;
    quantize_keys(call, call.rows() * options_.n_kv_heads, view);
    attend_to(call, shape, view);
    if (state != nullptr) store();
  } else if (options_.window == 0 || call.length == 1) {
    store();
    if (options_.fixed15()) state->quantize_keys(executor_.fixed15(), shape.first_position + call.length);
    attend_to(call, shape, state->view());
  } else {
    const Index span = shape.keys();
    const Index floats = call.batch * options_.key_width() * span;
    float* keys = call.workspace.floats(floats);
    float* values = call.workspace.floats(floats);
    state->copy_held(shape.first_key(), span, keys, values);
    KeyValueView view;
    view.keys = keys;
    view.values = values;
    view.slot_stride = options_.head_dim;
    view.head_stride = span * view.slot_stride;
    view.batch_stride = options_.n_kv_heads * view.head_stride;
    view.origin = shape.first_key();
    kernels.store_keys_values(shape, a.k_rope, a.v, keys, values, view);
    quantize_keys(call, call.batch * options_.n_kv_heads * span, view);
    attend_to(call, shape, view);
    store();
  }
  if (state != nullptr) state->advance(call.length);
}

// One sequence of several: its row of every activation that attention reads or writes.
void TransformerBlock::attend_row(const Call& call, Index row) {
  const Index query = row * options_.query_width(), key = row * options_.key_width();
  Call one{1, 1, nullptr, call.row_state(row), call.a, call.workspace, nullptr};
  one.a.q_rope += query;
  one.a.k_rope += key;
  one.a.v += key;
  one.a.context += query;
  attend(one);
}

// The codes of the view's keys, `rows` dense rows of head_dim values, for the length of the call.
void TransformerBlock::quantize_keys(const Call& call, Index rows, KeyValueView& view) {
  if (!options_.fixed15()) return;
  std::int16_t* codes = call.workspace.codes(rows * options_.head_dim);
  std::int32_t* exponents = call.workspace.ints(rows);
  executor_.fixed15().quantize(rows, options_.head_dim, view.keys, codes, exponents);
  view.key_codes = codes;
  view.key_exponents = exponents;
}

void TransformerBlock::attend_to(const Call& call, const AttentionShape& shape, const KeyValueView& view) {
  AttentionKernels& kernels = executor_.attention();
  if (call.stages == nullptr) {
    kernels.attention_forward(shape, call.a.q_rope, view, call.a.context, {});
    return;
  }
  const Workspace::Scope scope(call.workspace);
  const Shape rows = {shape.batch, shape.n_heads, shape.queries};
  const Shape cells = {shape.batch, shape.n_heads, shape.queries, shape.keys()};
  const auto take = [&](const Shape& of) { return call.workspace.floats(element_count(of)); };
  AttentionStages stages;
  stages.scores = take(cells);
  stages.masked = take(cells);
  stages.maximum = take(rows);
  stages.exponentials = take(cells);
  stages.denominators = take(rows);
  stages.weights = take(cells);
  record_span(call, shape, view);
  kernels.attention_forward(shape, call.a.q_rope, view, call.a.context, stages);
  call.stages->record("attn.scores", cells, stages.scores);
  call.stages->record("attn.masked", cells, stages.masked);
  call.stages->record("attn.max", rows, stages.maximum);
  call.stages->record("attn.exp", cells, stages.exponentials);
  call.stages->record("attn.denom", rows, stages.denominators);
  call.stages->record("attn.weights", cells, stages.weights);
  call.record("attn.ctx", {call.rows(), options_.query_width()}, call.a.context);
}

void TransformerBlock::record_span(const Call& call, const AttentionShape& shape, const KeyValueView& view) {
  const Workspace::Scope scope(call.workspace);
  const Index hd = options_.head_dim;
  const Shape span = {shape.batch, shape.n_kv_heads, shape.keys(), hd};
  float* keys = call.workspace.floats(element_count(span));
  float* values = call.workspace.floats(element_count(span));
  const std::size_t bytes = static_cast<std::size_t>(hd) * sizeof(float);
  Index to = 0;
  for (Index b = 0; b < shape.batch; ++b) {
    for (Index head = 0; head < shape.n_kv_heads; ++head) {
      for (Index p = shape.first_key(); p < shape.first_position + shape.queries; ++p, to += hd) {
        const Index from = view.row(b, head, p);
        executor_.memory().copy(keys + to, view.keys + from, bytes);
        executor_.memory().copy(values + to, view.values + from, bytes);
      }
    }
  }
  call.stages->record("kv.k_span", span, keys);
  call.stages->record("kv.v_span", span, values);
}

}  // namespace samba
