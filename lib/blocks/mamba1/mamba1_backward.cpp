// Gradients of the zero-state forward (spec 32 section 3).
#include <string>

#include "samba/blocks/mamba1/mamba1_block.h"
#include "samba/blocks/mamba_pieces.h"
#include "samba/core/error.h"

namespace samba {

namespace {

using mamba1::kStates;

Mamba1Gradients allocate_gradients(const Mamba1Call& call, bool stages, Workspace& workspace) {
  const Index cells = call.rows() * call.channels();
  Mamba1Gradients g;
  for (float** array : {&g.d_skip, &g.d_u_skip, &g.d_rows, &g.d_u_scan, &g.d_delta, &g.d_dt_proj, &g.d_u, &g.d_conv}) {
    *array = workspace.floats(cells);
  }
  g.d_in_proj = workspace.floats(2 * cells);
  g.d_x_proj = workspace.floats(call.rows() * call.x_width());
  g.d_a_rows = workspace.floats(call.batch * call.channels() * kStates);
  g.leaf_sums = workspace.floats(Mamba1Gradients::leaf_sum_floats(call));
  if (stages) g.d_h = workspace.floats(cells * kStates);
  return g;
}

// Stages of the backward, in the order of computation; tokens are two axes (spec 32 section 9).
class Recorder {
 public:
  Recorder(const Mamba1Call& call, Executor& executor, Workspace& workspace, StageRecorder& stages)
      : call_(call), executor_(executor), workspace_(workspace), stages_(stages) {}

  void tokens(std::string_view name, Index width, const float* values) {
    stages_.record(name, {call_.batch, call_.tokens, width}, values);
  }
  // Columns cut out of rows of `stride` floats.
  void columns(std::string_view name, Index first, Index width, Index stride, const float* values) {
    Workspace::Scope scope(workspace_);
    float* cut = workspace_.floats(call_.rows() * width);
    executor_.elementwise().copy_columns(call_.rows(), width, values + first, stride, cut, width);
    tokens(name, width, cut);
  }
  void shaped(std::string_view name, const Shape& shape, const float* values) { stages_.record(name, shape, values); }

 private:
  const Mamba1Call& call_;
  Executor& executor_;
  Workspace& workspace_;
  StageRecorder& stages_;
};

// What matrix products and the norm give.
struct Products {
  const float *d_gate, *d_dt_low, *d_u_x, *d_norm, *dot;
};

void record_gradients(Recorder& record, const Mamba1Call& call, const Mamba1Gradients& g, const Products& products) {
  const Index inner = call.channels(), rank = call.dt_rank(), width = call.x_width();
  record.tokens("dg", inner, products.d_gate);
  record.tokens("dsk", inner, g.d_skip);
  record.columns("dz", inner, inner, 2 * inner, g.d_in_proj);
  record.shaped("dh", {call.batch, call.tokens, inner, kStates}, g.d_h);
  record.tokens("du_s", inner, g.d_u_scan);
  record.tokens("ddelta", inner, g.d_delta);
  record.columns("dC", rank + kStates, kStates, width, g.d_x_proj);
  record.columns("dB", rank, kStates, width, g.d_x_proj);
  record.tokens("ddtp", inner, g.d_dt_proj);
  record.tokens("ddtl", rank, products.d_dt_low);
  record.tokens("du_x", inner, products.d_u_x);
  record.tokens("du", inner, g.d_u);
  record.tokens("dconv", inner, g.d_conv);
  record.columns("dhin", 0, inner, 2 * inner, g.d_in_proj);
  record.tokens("dnrm", call.d_model, products.d_norm);
  record.shaped("dot", {call.batch, call.tokens}, products.dot);
}

}  // namespace

void Mamba1Block::backward(Index batch, Index length, const float* x, const float* dy, float* dx,
                           std::span<float* const> weight_gradients, Workspace& workspace, StageRecorder* stages) {
  if (weight_gradients.size() != kMamba1Weights) {
    throw Error(ErrorKind::internal, "a mamba1 block has 10 gradients, not " + std::to_string(weight_gradients.size()));
  }
  const auto gradient = [&](Mamba1Weight which) { return weight_gradients[static_cast<std::size_t>(which)]; };
  Workspace::Scope scope(workspace);
  LinearKernels& linear = executor_.linear();
  Mamba1Kernels& kernels = executor_.mamba1();
  const bool recording = stages != nullptr;
  Mamba1Activations run =
      run_forward(batch, length, x, kNoState, recording ? Keep::for_stages : Keep::for_backward, workspace);
  const Mamba1Call& call = run.call;
  const Index rows = call.rows(), inner = call.channels(), rank = call.dt_rank(), width = call.x_width();
  if (recording) {
    run.projected = workspace.floats(rows * d_model_);
    linear.linear(*out_proj_, rows, call.gate, run.projected);
    record_forward(run, *stages);
  }

  float* d_gate = workspace.floats(rows * inner);
  linear.gemm(Layout::nn, rows, inner, d_model_, dy, matrix(Mamba1Weight::out_proj, workspace), d_gate);
  linear.gemm(Layout::tn, d_model_, inner, rows, dy, call.gate, gradient(Mamba1Weight::out_proj));

  Mamba1Gradients g = allocate_gradients(call, recording, workspace);
  g.conv = run.conv;
  g.conv_weight = weight(Mamba1Weight::conv);
  g.d_gate = d_gate;
  g.d_a_log = gradient(Mamba1Weight::a_log);
  g.d_conv_weight = gradient(Mamba1Weight::conv);
  g.d_conv_bias = gradient(Mamba1Weight::conv_bias);
  kernels.gate_backward(call, g);
  linear.column_sum(rows, inner, g.d_rows, gradient(Mamba1Weight::d));
  kernels.scan_backward(call, g);

  float* d_dt_low = workspace.floats(rows * rank);
  linear.gemm(Layout::nn, rows, rank, inner, g.d_dt_proj, matrix(Mamba1Weight::dt_proj, workspace), d_dt_low);
  linear.gemm(Layout::tn, inner, rank, rows, g.d_dt_proj, run.dt_low, gradient(Mamba1Weight::dt_proj));
  linear.column_sum(rows, inner, g.d_dt_proj, gradient(Mamba1Weight::dt_bias));
  executor_.elementwise().copy_columns(rows, rank, d_dt_low, rank, g.d_x_proj, width);
  float* d_u_x = workspace.floats(rows * inner);
  linear.gemm(Layout::nn, rows, inner, width, g.d_x_proj, matrix(Mamba1Weight::x_proj, workspace), d_u_x);
  linear.gemm(Layout::tn, width, inner, rows, g.d_x_proj, call.u, gradient(Mamba1Weight::x_proj));
  g.d_u_x = d_u_x;
  kernels.conv_backward(call, g);

  float* d_norm = workspace.floats(rows * d_model_);
  float* dot = recording ? workspace.floats(rows) : nullptr;
  linear.gemm(Layout::nn, rows, d_model_, 2 * inner, g.d_in_proj, matrix(Mamba1Weight::in_proj, workspace), d_norm);
  linear.gemm(Layout::tn, 2 * inner, d_model_, rows, g.d_in_proj, run.normed, gradient(Mamba1Weight::in_proj));
  executor_.norm().mamba12_norm_backward(rows, d_model_, kMamba1NormEpsilon, x, weight(Mamba1Weight::norm),
                                         run.norm_sumsq, d_norm, dy, dx, gradient(Mamba1Weight::norm), dot);
  if (recording) {
    Recorder record(call, executor_, workspace, *stages);
    record_gradients(record, call, g, {d_gate, d_dt_low, d_u_x, d_norm, dot});
  }
}

}  // namespace samba
