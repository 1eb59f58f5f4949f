// Gradients of the zero-state forward (spec 41).
#include <string>

#include "samba/blocks/mamba3/mamba3_block.h"
#include "samba/blocks/mamba3/mamba3_stages.h"
#include "samba/core/error.h"
#include "samba/kernels/extended_gradients.h"

namespace samba {

namespace {

using mamba3::kAngles;
using mamba3::kChunk;
using mamba3::kHeadDim;
using mamba3::kStateSize;

Mamba3Gradients allocate_gradients(const Mamba3Call& call, const float* d_gate, Workspace& workspace) {
  const Index rows = call.new_rows();
  const Index cells = rows * call.heads();
  const Index chunks = call.batch * call.heads() * call.chunks();
  Mamba3Gradients result;
  result.d_gate = d_gate;
  for (float** scalar : {&result.d_qkdot, &result.d_adt_seg, &result.d_dacs_read, &result.d_dacs_rec, &result.d_dacs,
                         &result.d_adt_dacs, &result.d_adt, &result.d_dt_qk, &result.d_trap_qk, &result.d_scale,
                         &result.d_dt_cur, &result.d_trap, &result.d_dt_angle, &result.d_dd_dt, &result.d_dd_a}) {
    *scalar = workspace.floats(cells);
  }
  for (float** key : {&result.d_q16, &result.d_k16, &result.d_q, &result.d_k, &result.d_krot, &result.d_qraw,
                      &result.d_kraw, &result.d_b, &result.d_c}) {
    *key = workspace.floats(cells * kStateSize);
  }
  for (float** value : {&result.d_skip, &result.d_v_skip, &result.d_v16, &result.d_v17, &result.d_v}) {
    *value = workspace.floats(cells * kHeadDim);
  }
  result.d_theta = workspace.floats(cells * kAngles);
  result.d_theta_suffix = workspace.floats(cells * kAngles);
  result.b_weight_rows = workspace.floats(rows * kStateSize);
  result.c_weight_rows = workspace.floats(rows * kStateSize);
  result.d_in_proj = workspace.floats(rows * mamba3::projection_width(call.d_model));
  result.d_seg = workspace.floats(chunks * kChunk * kChunk);
  result.state_gradients = workspace.floats(chunks * kHeadDim * kStateSize);
  return result;
}

Mamba3Products& products_of(const Executor& executor, Mamba3Kernels& kernels) {
  auto* products = dynamic_cast<Mamba3Products*>(&kernels);
  if (products != nullptr) return *products;
  refuse_unsupported("the executor " + executor.name() +
                     " has no gradient of samba.fp32.v2; cpu and reference have one");
}

}  // namespace

void Mamba3Block::backward(Index batch, Index length, const float* x, const float* dy, float* dx,
                           std::span<float* const> weight_gradients, Workspace& workspace, StageRecorder* stages) {
  if (weight_gradients.size() != kMamba3Weights) {
    throw Error(ErrorKind::internal, "a mamba3 block has 9 gradients, not " + std::to_string(weight_gradients.size()));
  }
  const auto gradient = [&](Mamba3Weight which) { return weight_gradients[static_cast<std::size_t>(which)]; };
  Workspace::Scope scope(workspace);
  const Index rows = batch * length;
  const Index heads = mamba3::heads(d_model_);
  const Index inner = mamba3::d_inner(d_model_);
  const Index width = mamba3::projection_width(d_model_);
  LinearKernels& linear = executor_.linear();
  Mamba3Kernels& kernels = executor_.mamba3();

  Mamba3Activations run = run_forward(batch, length, x, nullptr, nullptr,
                                      stages == nullptr ? Keep::for_backward : Keep::for_stages, workspace);
  const Mamba3Call& call = run.call;
  if (stages != nullptr) {
    run.projected = workspace.floats(rows * d_model_);
    linear.linear(*out_proj_, rows, call.gate, run.projected);
    record_mamba3_forward(run, executor_.memory(), workspace, *stages);
  }

  float* d_gate = workspace.floats(rows * inner);
  const Mamba3Gradients gradients = allocate_gradients(call, d_gate, workspace);
  linear.gemm(Layout::nn, rows, inner, d_model_, dy, matrix(Mamba3Weight::out_proj, workspace), d_gate);
  linear.gemm(Layout::tn, d_model_, inner, rows, dy, call.gate, gradient(Mamba3Weight::out_proj));

  kernels.gate_backward(call, gradients);
  if (gradient_ == Gradient::chains) {
    kernels.scan_backward(call, gradients);
  } else {
    products_of(executor_, kernels).scan_backward_products(call, gradients);
  }
  kernels.rotate_backward(call, gradients);
  kernels.tokens_backward(call, gradients);

  linear.column_sum(rows, heads, gradients.d_dd_dt, gradient(Mamba3Weight::dt_bias));
  linear.column_sum(rows, kStateSize, gradients.b_weight_rows, gradient(Mamba3Weight::b_norm));
  linear.column_sum(rows, kStateSize, gradients.c_weight_rows, gradient(Mamba3Weight::c_norm));
  linear.column_sum(rows, heads * kStateSize, gradients.d_b, gradient(Mamba3Weight::b_bias));
  linear.column_sum(rows, heads * kStateSize, gradients.d_c, gradient(Mamba3Weight::c_bias));
  linear.column_sum(rows, heads, gradients.d_qkdot, gradient(Mamba3Weight::d));

  float* d_norm = workspace.floats(rows * d_model_);
  linear.gemm(Layout::nn, rows, d_model_, width, gradients.d_in_proj, matrix(Mamba3Weight::in_proj, workspace), d_norm);
  linear.gemm(Layout::tn, width, d_model_, rows, gradients.d_in_proj, run.normed, gradient(Mamba3Weight::in_proj));
  if (stages != nullptr) {
    record_mamba3_backward(call, gradients, d_norm, executor_.memory(), workspace, *stages);
  }
  executor_.norm().mamba_norm_backward(rows, d_model_, kMamba3NormEpsilon, x, weight(Mamba3Weight::block_norm),
                                       run.norm_sumsq, d_norm, dy, dx, gradient(Mamba3Weight::block_norm));
}

}  // namespace samba
