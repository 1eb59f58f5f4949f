// Gradients of the zero-state forward (spec 32 section 4).
#include <string>

#include "samba/blocks/mamba2/mamba2_block.h"
#include "samba/blocks/mamba2/mamba2_stages.h"
#include "samba/core/error.h"

namespace samba {

namespace {

using mamba2::kCells;
using mamba2::kChunk;

Mamba2Gradients allocate_gradients(const Mamba2Call& call, Workspace& workspace) {
  const Index rows = call.rows();
  const Index chunks = call.batch * call.heads() * call.chunks();
  Mamba2Gradients g;
  for (float** array : {&g.d_rows, &g.d_cumsum, &g.d_da_seg, &g.d_da, &g.d_dt}) {
    *array = workspace.floats(rows * call.heads());
  }
  for (float** array : {&g.d_off, &g.d_decay, &g.d_dacs}) *array = workspace.floats(chunks * kChunk);
  for (float** array : {&g.d_skip, &g.d_xd}) *array = workspace.floats(rows * call.inner());
  for (float** array : {&g.d_xbc, &g.d_conv}) *array = workspace.floats(rows * call.channels());
  g.d_in_proj = workspace.floats(rows * call.width());
  g.d_scale = workspace.floats(chunks);
  g.d_states = workspace.floats(chunks * kCells);
  g.d_scores = workspace.floats(rows * kChunk);
  return g;
}

}  // namespace

void Mamba2Block::backward(Index batch, Index length, const float* x, const float* dy, float* dx,
                           std::span<float* const> weight_gradients, Workspace& workspace, StageRecorder* stages) {
  if (weight_gradients.size() != kMamba2Weights) {
    throw Error(ErrorKind::internal, "a mamba2 block has 9 gradients, not " + std::to_string(weight_gradients.size()));
  }
  const auto gradient = [&](Mamba2Weight which) { return weight_gradients[static_cast<std::size_t>(which)]; };
  Workspace::Scope scope(workspace);
  LinearKernels& linear = executor_.linear();
  NormKernels& norm = executor_.norm();
  Mamba2Kernels& kernels = executor_.mamba2();
  const bool recording = stages != nullptr;
  Mamba2Activations run =
      run_forward(batch, length, x, nullptr, nullptr, recording ? Keep::for_stages : Keep::for_backward, workspace);
  const Mamba2Call& call = run.call;
  const Index rows = call.rows();
  const Index inner = call.inner();
  if (recording) {
    run.projected = workspace.floats(rows * d_model_);
    linear.linear(*out_proj_, rows, run.gate_normed, run.projected);
    record_mamba2_forward(run, executor_, workspace, *stages);
  }

  float* d_gate_normed = workspace.floats(rows * inner);
  float* d_gate = workspace.floats(rows * inner);
  linear.gemm(Layout::nn, rows, inner, d_model_, dy, matrix(Mamba2Weight::out_proj, workspace), d_gate_normed);
  linear.gemm(Layout::tn, d_model_, inner, rows, dy, run.gate_normed, gradient(Mamba2Weight::out_proj));
  norm.mamba12_norm_backward(rows, inner, kMamba2NormEpsilon, call.gate, weight(Mamba2Weight::norm), run.gate_sumsq,
                             d_gate_normed, nullptr, d_gate, gradient(Mamba2Weight::norm), nullptr);

  Mamba2Gradients g = allocate_gradients(call, workspace);
  g.conv = run.conv;
  g.conv_weight = weight(Mamba2Weight::conv);
  g.d_gate = d_gate;
  g.d_a_log = gradient(Mamba2Weight::a_log);
  g.d_dt_bias = gradient(Mamba2Weight::dt_bias);
  g.d_conv_weight = gradient(Mamba2Weight::conv);
  g.d_conv_bias = gradient(Mamba2Weight::conv_bias);
  kernels.gate_backward(call, g);
  linear.column_sum(rows, call.heads(), g.d_rows, gradient(Mamba2Weight::d));
  kernels.scan_backward(call, g);
  kernels.conv_backward(call, g);

  float* d_normed = workspace.floats(rows * d_model_);
  linear.gemm(Layout::nn, rows, d_model_, call.width(), g.d_in_proj, matrix(Mamba2Weight::in_proj, workspace),
              d_normed);
  linear.gemm(Layout::tn, call.width(), d_model_, rows, g.d_in_proj, run.normed, gradient(Mamba2Weight::in_proj));
  if (recording) {
    record_mamba2_backward(call, g, {d_gate_normed, d_normed}, executor_, workspace, *stages);
  }
  norm.mamba12_norm_backward(rows, d_model_, kMamba2NormEpsilon, x, weight(Mamba2Weight::block_norm), run.norm_sumsq,
                             d_normed, dy, dx, gradient(Mamba2Weight::block_norm), nullptr);
}

}  // namespace samba
