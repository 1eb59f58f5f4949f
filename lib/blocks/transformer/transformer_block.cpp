#include "samba/blocks/transformer/transformer_block.h"

#include <algorithm>
#include <string>
#include <utility>

#include "samba/blocks/transformer/transformer_call.h"
#include "samba/core/error.h"
#include "samba/numerics/fixed15.h"

namespace samba {

namespace {

using W = TransformerWeight;

// Rows of the rotary table that are made when a state is allocated; longer sequences grow it by doubling.
constexpr Index kMostRowsAhead = 65536;

// Arrays one behind the other, each starting at a cache line.
class Placement {
 public:
  explicit Placement(float* store) : store_(store) {}
  float* take(Index count) {
    float* at = store_ == nullptr ? nullptr : store_ + used_;
    used_ += (count + 15) / 16 * 16;
    return at;
  }
  Index used() const { return used_; }

 private:
  float* store_;
  Index used_ = 0;
};

std::vector<BlockWeights::SlotSpec> weight_slots(const TransformerOptions& options) {
  using Part = BlockWeights::Part;
  std::vector<BlockWeights::SlotSpec> slots(kTransformerWeights);
  for (std::size_t i = 0; i < kTransformerWeights; ++i) {
    if (!options.has(static_cast<W>(i))) continue;
    slots[i].shape = options.weight_shape(static_cast<W>(i));
    slots[i].part = slots[i].shape.size() == 2 ? Part::product : Part::elements;
  }
  return slots;
}

}  // namespace

TransformerBlock::TransformerBlock(Executor& executor, TransformerOptions options, std::shared_ptr<RotaryTable> rotary)
    : executor_(executor),
      options_(std::move(options)),
      groups_(options_.fixed15() ? nullptr : dynamic_cast<LinearGroups*>(&executor.linear())),
      weight_specs_(options_.weight_specs()),
      rotary_(std::move(rotary)),
      weights_(executor, weight_slots(options_)) {
  if (rotary_ == nullptr) {
    rotary_ =
        std::make_shared<RotaryTable>(executor, options_.rotary_dim(), options_.rope_theta, options_.rope_scaling);
  }
}

void TransformerBlock::bind_weights(std::span<const WeightView> weights) {
  weights_.bind(weights);
  lay_out_weights();
}

bool TransformerBlock::lays_out(std::size_t weight) const {
  return !options_.fixed15() && weights_.is_product(weights_.slot_of(weight));
}

const PreparedWeight* TransformerBlock::laid_out(std::size_t weight) const {
  if (!lays_out(weight)) return nullptr;
  switch (static_cast<W>(weights_.slot_of(weight))) {
    case W::q_proj:
      return q_proj_.get();
    case W::k_proj:
      return k_proj_.get();
    case W::v_proj:
      return v_proj_.get();
    case W::o_proj:
      return o_proj_.get();
    case W::gate_proj:
      return gate_proj_.get();
    case W::up_proj:
      return up_proj_.get();
    case W::down_proj:
      return down_proj_.get();
    default:
      return nullptr;
  }
}

void TransformerBlock::weights_changed() {
  weights_.refresh();
  lay_out_weights();
}

void TransformerBlock::lay_out_weights() {
  const auto prepare = [&](std::unique_ptr<PreparedWeight>& prepared, W which) {
    if (!options_.has(which)) return;
    if (options_.fixed15()) return prepare_planes(prepared, which);
    weights_.prepare(static_cast<std::size_t>(which), prepared);
  };
  prepare(q_proj_, W::q_proj);
  prepare(k_proj_, W::k_proj);
  prepare(v_proj_, W::v_proj);
  prepare(o_proj_, W::o_proj);
  prepare(gate_proj_, W::gate_proj);
  prepare(up_proj_, W::up_proj);
  prepare(down_proj_, W::down_proj);
}

// The integer planes of fixed15_v1 are made of float32 values, whatever form the weight is stored in.
void TransformerBlock::prepare_planes(std::unique_ptr<PreparedWeight>& prepared, W which) {
  const WeightView& view = weights_.view(static_cast<std::size_t>(which));
  const float* values = view.values();
  DeviceArray<float> expanded;
  if (view.is_packed()) {
    expanded = DeviceArray<float>(executor_.memory(), view.packed().rows * view.packed().columns);
    executor_.linear().expand(view.packed(), expanded.data());
    values = expanded.data();
  }
  if (prepared != nullptr) return executor_.fixed15().refresh(*prepared, values);
  const Shape shape = options_.weight_shape(which);
  prepared = executor_.fixed15().prepare(shape[0], shape[1], values);
}

std::unique_ptr<BlockState> TransformerBlock::allocate_state(Index batch_size, Index max_tokens) const {
  auto state = std::make_unique<TransformerState>(executor_.memory(), options_, batch_size, max_tokens);
  rotary_->reserve(std::min({max_tokens, options_.max_positions, kMostRowsAhead}));
  return state;
}

void TransformerBlock::check_call(const BlockState* state, Index length) const {
  Index first = 0;
  Index capacity = length;
  if (state != nullptr) {
    const auto* cache = dynamic_cast<const TransformerState*>(state);
    if (cache == nullptr || cache->n_kv_heads() != options_.n_kv_heads || cache->head_dim() != options_.head_dim ||
        cache->window() != options_.window || cache->fixed15() != options_.fixed15()) {
      refuse_value("the state belongs to a block of another kind, n_kv_heads, head_dim, window or numeric_profile");
    }
    first = cache->cached_tokens();
    capacity = cache->max_tokens();
  }
  const Index last = first + length - 1;
  if (last >= options_.max_positions) {
    refuse_value("the last position of the call, " + std::to_string(last) + ", is not below max_positions " +
                 std::to_string(options_.max_positions));
  }
  if (const auto fault = rotary_->angle_fault(last)) {
    refuse_value("the rotary angle of column " + std::to_string(fault->column) + " at position " +
                 std::to_string(last) + " would be " + std::to_string(fault->angle) + "; angles must stay below 8192");
  }
  if (first + length > capacity) {
    refuse_value("the call needs " + std::to_string(first + length) + " cache slots, max_tokens is " +
                 std::to_string(capacity));
  }
}

void TransformerBlock::check_contractions() const {
  if (!options_.fixed15()) return;
  for (const Index k : {options_.d_model, options_.query_width(), options_.intermediate, options_.head_dim}) {
    if (k <= kLongestFixed15Sum) continue;
    refuse_value("under numeric_profile fixed15_v1 a product sums over k <= " + std::to_string(kLongestFixed15Sum) +
                 " terms, this block has k = " + std::to_string(k));
  }
}

Index TransformerBlock::lay_out(Index rows, bool keep, float* store, TransformerActivations& a) const {
  Placement layout(store);
  const auto take = [&](Index width) { return layout.take(rows * width); };
  const Index dm = options_.d_model, qw = options_.query_width(), kw = options_.key_width();
  const Index wide = options_.intermediate;
  a.norm1_sumsq = take(1);
  a.norm1 = take(dm);
  if (options_.qk_norm && keep) {
    a.q_heads = take(qw);
    a.k_heads = take(kw);
  }
  a.q_rope = take(qw);
  a.k_rope = take(kw);
  a.v = take(kw);
  a.context = take(qw);
  a.residual1 = take(dm);
  a.norm2_sumsq = take(1);
  a.norm2 = take(dm);
  if (options_.gated()) a.gate = take(wide);
  a.up = take(wide);
  a.act = keep ? take(wide) : options_.gated() ? a.gate : a.up;
  if (options_.gated()) a.gated = keep ? take(wide) : a.up;
  return layout.used();
}

Index TransformerBlock::kept_floats(Index rows) const {
  TransformerActivations nowhere;
  return lay_out(rows, true, nullptr, nowhere);
}

void TransformerBlock::forward(Index batch, Index length, const float* x, float* y, BlockState* state,
                               Workspace& workspace, StageRecorder* stages) {
  const Workspace::Scope scope(workspace);
  Call call{batch, length, x, static_cast<TransformerState*>(state), {}, workspace, stages};
  const bool keep = stages != nullptr;
  float* store = workspace.floats(lay_out(call.rows(), keep, nullptr, call.a));
  lay_out(call.rows(), keep, store, call.a);
  run_forward(call);
  finish_forward(call, y);
}

void TransformerBlock::step_rows(std::span<BlockState* const> states, const float* x, float* y, Workspace& workspace) {
  const Workspace::Scope scope(workspace);
  Call call{static_cast<Index>(states.size()), 1, x, nullptr, {}, workspace, nullptr, states};
  float* store = workspace.floats(lay_out(call.rows(), false, nullptr, call.a));
  lay_out(call.rows(), false, store, call.a);
  run_forward(call);
  finish_forward(call, y);
}

void TransformerBlock::forward_keeping(Index batch, Index length, const float* x, float* y, float* store,
                                       Workspace& workspace) {
  const Workspace::Scope scope(workspace);
  Call call{batch, length, x, nullptr, {}, workspace, nullptr};
  lay_out(call.rows(), true, store, call.a);
  run_forward(call);
  finish_forward(call, y);
}

void TransformerBlock::run_forward(const Call& call) {
  const Workspace::Scope scope(call.workspace);
  const TransformerActivations& a = call.a;
  const Index rows = call.rows(), dm = options_.d_model;
  check_contractions();
  rotary_->reserve(call.first_position() + call.length);
  for (Index row = 0; row < static_cast<Index>(call.row_states.size()); ++row) {
    rotary_->reserve(call.row_state(row)->cached_tokens() + 1);
  }

  normalize(W::input_norm, W::input_norm_bias, rows, call.x, a.norm1, a.norm1_sumsq);
  call.record("norm1.sumsq", {rows}, a.norm1_sumsq);
  call.record("norm1.out", {rows, dm}, a.norm1);
  project_heads(call);
  attend(call);

  project_onto(call, *o_proj_, W::o_bias, a.context, call.x, "o_proj.out", a.residual1);
  call.record("residual1.out", {rows, dm}, a.residual1);

  normalize(W::post_attention_norm, W::post_attention_norm_bias, rows, a.residual1, a.norm2, a.norm2_sumsq);
  call.record("norm2.sumsq", {rows}, a.norm2_sumsq);
  call.record("norm2.out", {rows, dm}, a.norm2);
  project_wide(call);
}

void TransformerBlock::project_wide(const Call& call) {
  const TransformerActivations& a = call.a;
  const Index rows = call.rows();
  const bool fused = groups_ != nullptr && options_.mlp == TransformerMlp::swiglu;
  if (fused) {
    groups_->linear_swiglu(rows, a.norm2, term(*gate_proj_, W::gate_bias, a.gate), term(*up_proj_, W::up_bias, a.up),
                           a.act, a.gated);
  } else {
    if (options_.gated()) project(*gate_proj_, W::gate_bias, rows, a.norm2, a.gate);
    project(*up_proj_, W::up_bias, rows, a.norm2, a.up);
  }
  if (options_.gated()) call.record("gate_proj.out", {rows, options_.intermediate}, a.gate);
  call.record("up_proj.out", {rows, options_.intermediate}, a.up);
  if (!fused) activate(call);
  call.record("act.out", {rows, options_.intermediate}, a.act);
  call.record("silu.out", {rows, options_.intermediate}, a.act);  // its name in the cases of the gradient
  if (options_.gated()) call.record("mlp.gated", {rows, options_.intermediate}, a.gated);
}

// act = F(act(F(gate))), gated = F(act * F(up)); an ungated MLP has act = F(act(F(up))) alone.
void TransformerBlock::activate(const Call& call) {
  const TransformerActivations& a = call.a;
  const Index n = call.rows() * options_.intermediate;
  ElementwiseKernels& elementwise = executor_.elementwise();
  if (options_.mlp == TransformerMlp::swiglu) {
    elementwise.swiglu_forward(n, a.gate, a.up, a.act, a.gated);
  } else {
    const bool exact = options_.mlp == TransformerMlp::gelu || options_.mlp == TransformerMlp::geglu;
    const UnaryFunction function = exact ? UnaryFunction::gelu : UnaryFunction::gelu_tanh;
    elementwise.unary(function, n, options_.gated() ? a.gate : a.up, a.act);
    if (options_.gated()) elementwise.binary(BinaryFunction::mul, n, a.act, a.up, a.gated);
  }
}

void TransformerBlock::finish_forward(const Call& call, float* y) {
  project_onto(call, *down_proj_, W::down_bias, options_.gated() ? call.a.gated : call.a.act, call.a.residual1,
               "down_proj.out", y);
}

void TransformerBlock::project_onto(const Call& call, const PreparedWeight& prepared, W bias, const float* x,
                                    const float* residual, std::string_view stage, float* y) {
  const Index rows = call.rows(), dm = options_.d_model;
  if (groups_ != nullptr && call.stages == nullptr) {
    LinearTerm sum = term(prepared, bias, y);
    sum.residual = residual;
    groups_->linear_group(rows, x, {&sum, 1});
    return;
  }
  const Workspace::Scope scope(call.workspace);
  float* projected = call.workspace.floats(rows * dm);
  project(prepared, bias, rows, x, projected);
  call.record(stage, {rows, dm}, projected);
  executor_.elementwise().add(rows * dm, residual, projected, y);
}

void TransformerBlock::normalize(W scale, W bias, Index rows, const float* x, float* y, float* sumsq) {
  NormKernels& norm = executor_.norm();
  if (options_.norm == TransformerNorm::layernorm) {
    norm.layer_norm_block(rows, options_.d_model, options_.norm_eps, x, weight(scale), weight(bias), y, sumsq);
    return;
  }
  const bool offset = options_.norm == TransformerNorm::rmsnorm_offset;
  norm.rms_norm_forward(rows, options_.d_model, options_.norm_eps, offset, x, weight(scale), y, sumsq, nullptr);
}

void TransformerBlock::project(const PreparedWeight& prepared, W bias, Index rows, const float* x, float* y) {
  if (options_.fixed15()) {
    executor_.fixed15().linear(prepared, rows, x, y);
  } else {
    executor_.linear().linear(prepared, rows, x, y);
  }
  if (options_.has(bias)) executor_.linear().add_bias(rows, prepared.rows(), weight(bias), y);
}

}  // namespace samba
