// The gradient of a transformer block's prefill: spec 21 section 5 with the default options, and what the other options
// add (docs/spec-extensions.md section 1).
#include "samba/blocks/transformer/transformer_call.h"
#include "samba/core/error.h"
#include "samba/kernels/extended_gradients.h"

namespace samba {

namespace {

using W = TransformerWeight;

// What kernels offer beside their own interface.
template <class Offer, class Kernels>
Offer& offered(const Executor& executor, Kernels& kernels) {
  auto* offer = dynamic_cast<Offer*>(&kernels);
  if (offer != nullptr) return *offer;
  refuse_unsupported("the executor " + executor.name() +
                     " has the gradient of a transformer block for the default block options only; cpu and reference "
                     "have it for all");
}

}  // namespace

void TransformerBlock::backward(Index batch, Index length, const float* x, const float* dy, float* dx,
                                std::span<float* const> weight_gradients, Workspace& workspace, StageRecorder* stages) {
  const Workspace::Scope scope(workspace);
  float* store = workspace.floats(kept_floats(batch * length));
  Call call{batch, length, x, nullptr, {}, workspace, stages};
  lay_out(call.rows(), true, store, call.a);
  run_forward(call);
  backward_from(batch, length, x, store, dy, dx, weight_gradients, workspace, stages);
}

void TransformerBlock::backward_from(Index batch, Index length, const float* x, float* store, const float* dy,
                                     float* dx, std::span<float* const> weight_gradients, Workspace& workspace,
                                     StageRecorder* stages) {
  if (options_.fixed15()) refuse_unsupported("a block of numeric_profile fixed15_v1 has no gradient");
  const Workspace::Scope scope(workspace);
  Gradient gradient{batch, length, x, {}, dy, dx, weight_gradients, options_, workspace, stages};
  const Index rows = gradient.rows(), dm = options_.d_model;
  lay_out(rows, true, store, gradient.a);
  rotary_->reserve(length);

  float* d_normed = workspace.floats(rows * dm);
  float* d_residual = workspace.floats(rows * dm);
  float* from_norm = workspace.floats(rows * dm);
  const bool has_dot = options_.norm == TransformerNorm::rmsnorm;
  float* dot = has_dot ? workspace.floats(rows) : nullptr;

  mlp_backward(gradient, d_normed);
  gradient.record("d_norm2_out", {rows, dm}, d_normed);
  norm_backward(gradient, W::post_attention_norm, W::post_attention_norm_bias, gradient.a.residual1, d_normed,
                from_norm, dot);
  if (has_dot) gradient.record("norm2.dot", {rows}, dot);
  gradient.record("norm2.dx", {rows, dm}, from_norm);
  executor_.elementwise().add(rows * dm, from_norm, dy, d_residual);
  gradient.record("d_residual1", {rows, dm}, d_residual);

  attention_backward(gradient, d_residual, d_normed);
  gradient.record("d_norm1_out", {rows, dm}, d_normed);
  norm_backward(gradient, W::input_norm, W::input_norm_bias, x, d_normed, from_norm, dot);
  if (has_dot) gradient.record("norm1.dot", {rows}, dot);
  gradient.record("norm1.dx", {rows, dm}, from_norm);
  executor_.elementwise().add(rows * dm, from_norm, d_residual, dx);
}

void TransformerBlock::norm_backward(const Gradient& gradient, W scale, W bias, const float* x, const float* dy,
                                     float* dx, float* dot) {
  NormKernels& norm = executor_.norm();
  const auto extended = [&]() -> NormGradients& { return offered<NormGradients>(executor_, norm); };
  const Index rows = gradient.rows(), dm = options_.d_model;
  switch (options_.norm) {
    case TransformerNorm::rmsnorm:
      return norm.rms_norm_backward(rows, dm, options_.norm_eps, x, weight(scale), dy, dx, gradient.of(scale), dot);
    case TransformerNorm::rmsnorm_offset:
      return extended().rms_norm_heads_backward(rows, 1, dm, options_.norm_eps, true, x, weight(scale), dy, dx,
                                                gradient.of(scale));
    case TransformerNorm::layernorm:
      return extended().layer_norm_block_backward(rows, dm, options_.norm_eps, x, weight(scale), dy, dx,
                                                  gradient.of(scale), options_.has(bias) ? gradient.of(bias) : nullptr);
  }
}

void TransformerBlock::heads_backward(const Gradient& gradient, W scale, Index heads, const float* x, float* d) {
  if (!options_.qk_norm) return;
  const bool offset = options_.norm == TransformerNorm::rmsnorm_offset;
  auto& norm = offered<NormGradients>(executor_, executor_.norm());
  norm.rms_norm_heads_backward(gradient.rows(), heads, options_.head_dim, options_.norm_eps, offset, x, weight(scale),
                               d, d, gradient.of(scale));
}

// A bias is added to every row: its gradient is the column sum of its projection's.
void TransformerBlock::bias_gradient(const Gradient& gradient, W bias, const float* d_out) {
  if (!options_.has(bias)) return;
  executor_.linear().column_sum(gradient.rows(), options_.weight_shape(bias)[0], d_out, gradient.of(bias));
}

// Steps 1 to 5: from dY to the gradient of norm2's output.
void TransformerBlock::mlp_backward(const Gradient& gradient, float* d_norm2) {
  const Workspace::Scope scope(gradient.workspace);
  const TransformerActivations& a = gradient.a;
  LinearKernels& linear = executor_.linear();
  const Index rows = gradient.rows(), dm = options_.d_model, wide = options_.intermediate;
  const bool gated = options_.gated();
  const auto take = [&](Index width) { return gradient.workspace.floats(rows * width); };

  float* d_wide = take(wide);  // of gated, or of act in an ungated MLP
  linear.gemm(Layout::nn, rows, wide, dm, gradient.dy, matrix(W::down_proj, gradient.workspace), d_wide);
  linear.gemm(Layout::tn, dm, wide, rows, gradient.dy, gated ? a.gated : a.act, gradient.of(W::down_proj));
  bias_gradient(gradient, W::down_bias, gradient.dy);
  float* d_up = take(wide);
  float* d_gate = gated ? take(wide) : nullptr;
  activation_backward(gradient, d_wide, d_up, d_gate);
  if (gated) linear.gemm(Layout::tn, wide, dm, rows, d_gate, a.norm2, gradient.of(W::gate_proj));
  linear.gemm(Layout::tn, wide, dm, rows, d_up, a.norm2, gradient.of(W::up_proj));
  if (gated) bias_gradient(gradient, W::gate_bias, d_gate);
  bias_gradient(gradient, W::up_bias, d_up);

  if (!gated) return linear.gemm(Layout::nn, rows, dm, wide, d_up, matrix(W::up_proj, gradient.workspace), d_norm2);
  float* from_up = take(dm);
  linear.gemm(Layout::nn, rows, dm, wide, d_gate, matrix(W::gate_proj, gradient.workspace), d_norm2);
  linear.gemm(Layout::nn, rows, dm, wide, d_up, matrix(W::up_proj, gradient.workspace), from_up);
  executor_.elementwise().add(rows * dm, d_norm2, from_up, d_norm2);
}

// Steps 2 and 3; an ungated MLP has d_up alone.
void TransformerBlock::activation_backward(const Gradient& gradient, const float* d_wide, float* d_up, float* d_gate) {
  const Workspace::Scope scope(gradient.workspace);
  const TransformerActivations& a = gradient.a;
  ElementwiseKernels& elementwise = executor_.elementwise();
  const Index rows = gradient.rows(), wide = options_.intermediate, n = rows * wide;
  const bool exact = options_.mlp == TransformerMlp::gelu || options_.mlp == TransformerMlp::geglu;
  const UnaryFunction function = exact ? UnaryFunction::gelu : UnaryFunction::gelu_tanh;
  const auto slopes = [&]() -> ActivationGradients& { return offered<ActivationGradients>(executor_, elementwise); };
  if (!options_.gated()) {
    slopes().unary_backward(function, n, a.up, d_wide, d_up);
    gradient.record("d_act_out", {rows, wide}, d_wide);
    gradient.record("d_up_proj_out", {rows, wide}, d_up);
    return;
  }
  float* d_act = gradient.workspace.floats(n);
  if (options_.mlp == TransformerMlp::swiglu) {
    elementwise.swiglu_backward(n, a.gate, a.up, a.act, d_wide, d_act, d_up, d_gate);
  } else {
    elementwise.binary(BinaryFunction::mul, n, d_wide, a.up, d_act);
    elementwise.binary(BinaryFunction::mul, n, d_wide, a.act, d_up);
    slopes().unary_backward(function, n, a.gate, d_act, d_gate);
  }
  gradient.record("d_mlp_gated", {rows, wide}, d_wide);
  gradient.record("d_silu_out", {rows, wide}, d_act);
  gradient.record("d_up_proj_out", {rows, wide}, d_up);
  gradient.record("d_gate_proj_out", {rows, wide}, d_gate);
}

// Steps 8 to 17: from the gradient of residual1 to that of norm1's output.
void TransformerBlock::attention_backward(const Gradient& gradient, const float* d_residual, float* d_norm1) {
  const Workspace::Scope scope(gradient.workspace);
  const TransformerActivations& a = gradient.a;
  LinearKernels& linear = executor_.linear();
  const Index rows = gradient.rows(), dm = options_.d_model, qw = options_.query_width(), kw = options_.key_width();
  const auto take = [&](Index width) { return gradient.workspace.floats(rows * width); };

  float* d_context = take(qw);
  linear.gemm(Layout::nn, rows, qw, dm, d_residual, matrix(W::o_proj, gradient.workspace), d_context);
  linear.gemm(Layout::tn, dm, qw, rows, d_residual, a.context, gradient.of(W::o_proj));
  bias_gradient(gradient, W::o_bias, d_residual);
  gradient.record("d_attn_ctx", {rows, qw}, d_context);
  float* d_q_rope = take(qw);
  float* d_k_rope = take(kw);
  float* d_v = take(kw);
  scores_backward(gradient, d_context, d_q_rope, d_k_rope, d_v);

  float* d_q = take(qw);
  float* d_k = take(kw);
  RopeShape shape{gradient.batch, gradient.length, options_.n_heads, options_.head_dim, rotary_->rotary_dim(), 0};
  executor_.rope().rotate_backward(shape, d_q_rope, rotary_->cosines(), rotary_->sines(), d_q);
  shape.n_heads = options_.n_kv_heads;
  executor_.rope().rotate_backward(shape, d_k_rope, rotary_->cosines(), rotary_->sines(), d_k);
  heads_backward(gradient, W::q_norm, options_.n_heads, a.q_heads, d_q);
  heads_backward(gradient, W::k_norm, options_.n_kv_heads, a.k_heads, d_k);
  gradient.record("d_q_proj_out", {rows, qw}, d_q);
  gradient.record("d_k_proj_out", {rows, kw}, d_k);
  linear.gemm(Layout::tn, qw, dm, rows, d_q, a.norm1, gradient.of(W::q_proj));
  linear.gemm(Layout::tn, kw, dm, rows, d_k, a.norm1, gradient.of(W::k_proj));
  linear.gemm(Layout::tn, kw, dm, rows, d_v, a.norm1, gradient.of(W::v_proj));
  bias_gradient(gradient, W::q_bias, d_q);
  bias_gradient(gradient, W::k_bias, d_k);
  bias_gradient(gradient, W::v_bias, d_v);

  float* term = take(dm);
  linear.gemm(Layout::nn, rows, dm, qw, d_q, matrix(W::q_proj, gradient.workspace), d_norm1);
  linear.gemm(Layout::nn, rows, dm, kw, d_k, matrix(W::k_proj, gradient.workspace), term);
  executor_.elementwise().add(rows * dm, d_norm1, term, d_norm1);
  linear.gemm(Layout::nn, rows, dm, kw, d_v, matrix(W::v_proj, gradient.workspace), term);
  executor_.elementwise().add(rows * dm, d_norm1, term, d_norm1);
}

// Steps 9 to 14, with their stages when somebody asks.
void TransformerBlock::scores_backward(const Gradient& gradient, const float* d_context, float* dq, float* dk,
                                       float* dv) {
  const TransformerActivations& a = gradient.a;
  AttentionKernels& kernels = executor_.attention();
  const AttentionShape shape = attention_shape(gradient.batch, gradient.length, 0);
  if (shape.softcap) offered<SoftcapGradients>(executor_, kernels);
  if (gradient.stages == nullptr) {
    kernels.attention_backward(shape, a.q_rope, a.k_rope, a.v, d_context, dq, dk, dv, {});
    return;
  }
  const Workspace::Scope scope(gradient.workspace);
  const Shape cells = {shape.batch, shape.n_heads, shape.queries, shape.queries};
  const Shape sums = {shape.batch, shape.n_heads, shape.queries};
  const auto take = [&](const Shape& of) { return gradient.workspace.floats(element_count(of)); };
  const AttentionBackwardStages stages = {take(cells), take(sums), take(cells), take(cells)};
  kernels.attention_backward(shape, a.q_rope, a.k_rope, a.v, d_context, dq, dk, dv, stages);
  const Index rows = gradient.rows();
  gradient.stages->record("d_attn_weights", cells, stages.d_weights);
  gradient.stages->record("attn.zdot", sums, stages.z_dot);
  gradient.stages->record("d_attn_masked", cells, stages.d_masked);
  gradient.stages->record("d_qk_cell", cells, stages.d_scores);
  gradient.record("d_q_rope", {rows, options_.query_width()}, dq);
  gradient.record("d_k_rope", {rows, options_.key_width()}, dk);
  gradient.record("d_v_proj_out", {rows, options_.key_width()}, dv);
}

}  // namespace samba
