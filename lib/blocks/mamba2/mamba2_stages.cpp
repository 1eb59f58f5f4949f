#include "samba/blocks/mamba2/mamba2_stages.h"

namespace samba {

namespace {

using mamba2::kChunk;
using mamba2::kHeadDim;
using mamba2::kStateSize;

// Columns [first, first + width) of rows of `stride` floats, dense in the workspace.
float* cut_columns(Executor& executor, Workspace& workspace, Index rows, Index first, Index width, Index stride,
                   const float* values) {
  float* cut = workspace.floats(rows * width);
  executor.elementwise().copy_columns(rows, width, values + first, stride, cut, width);
  return cut;
}

// The new rows of dt, (batch, T, H).
float* new_step_sizes(const Mamba2Call& call, Executor& executor, Workspace& workspace) {
  const Index heads = call.heads();
  const Index width = call.tokens * heads;
  return cut_columns(executor, workspace, call.batch, call.buffered * heads, width, call.working_rows() * heads,
                     call.dt);
}

}  // namespace

void record_mamba2_forward(const Mamba2Activations& run, Executor& executor, Workspace& workspace,
                           StageRecorder& stages) {
  const Mamba2Call& call = run.call;
  const Index rows = call.rows();
  const Index heads = call.heads();
  const Shape by_head = {rows, heads, kHeadDim};
  const Shape positions = {call.batch, heads, call.chunks(), kChunk};
  const Shape states = {call.batch, call.chunks(), heads, kHeadDim, kStateSize};
  Workspace::Scope scope(workspace);

  stages.record("norm.sumsq", {rows}, run.norm_sumsq);
  stages.record("norm.out", {rows, call.d_model}, run.normed);
  stages.record("in_proj.out", {rows, call.width()}, call.in_proj);
  stages.record("A.out", {heads}, call.a);
  stages.record("conv.out", {rows, call.channels()}, run.conv);
  stages.record("silu.out", {rows, call.channels()}, call.x_bc);
  stages.record("dt.out", {rows, heads}, new_step_sizes(call, executor, workspace));
  stages.record("xd.out", by_head, call.x_d);
  stages.record("dacs.out", positions, call.dacs);
  stages.record("ydiag.out", by_head, call.y_diag);
  stages.record("decay.states", positions, call.decay);
  stages.record("cstate.out", states, call.chunk_states);
  stages.record("pass.states", states, call.pass_states);
  stages.record("yoff.out", by_head, call.y_off);
  stages.record("scan.y", by_head, call.y);
  stages.record("skip.out", {rows, call.inner()}, call.skip);
  stages.record("gnorm.gate", {rows, call.inner()}, call.gate);
  stages.record("gnorm.sumsq", {rows}, run.gate_sumsq);
  stages.record("gnorm.out", {rows, call.inner()}, run.gate_normed);
  stages.record("out_proj.out", {rows, call.d_model}, run.projected);
}

void record_mamba2_backward(const Mamba2Call& call, const Mamba2Gradients& g, const Mamba2NormGradients& norms,
                            Executor& executor, Workspace& workspace, StageRecorder& stages) {
  const Index heads = call.heads();
  const Index inner = call.inner();
  const Shape positions = {call.batch, heads, call.chunks(), kChunk};
  Workspace::Scope scope(workspace);
  const auto tokens = [&](std::string_view name, Index width, const float* values) {
    stages.record(name, {call.batch, call.tokens, width}, values);
  };
  const auto columns = [&](std::string_view name, Index first, Index width, Index stride, const float* values) {
    tokens(name, width, cut_columns(executor, workspace, call.rows(), first, width, stride, values));
  };

  tokens("d_gnorm", inner, norms.d_gate_normed);
  tokens("d_gate", inner, g.d_gate);
  tokens("d_skip", inner, g.d_skip);
  columns("d_z", 0, inner, call.width(), g.d_in_proj);
  stages.record("d_dacs_yoff", positions, g.d_off);
  stages.record("d_decay", positions, g.d_decay);
  stages.record("d_scale", {call.batch, call.chunks(), heads}, g.d_scale);
  stages.record("d_dacs", positions, g.d_dacs);
  tokens("d_da_cumsum", heads, g.d_cumsum);
  tokens("d_da_seg", heads, g.d_da_seg);
  tokens("d_da", heads, g.d_da);
  stages.record("d_xd", {call.batch, call.tokens, heads, kHeadDim}, g.d_xd);
  columns("d_x", 0, inner, call.channels(), g.d_xbc);
  columns("d_B", inner, kStateSize, call.channels(), g.d_xbc);
  columns("d_C", inner + kStateSize, kStateSize, call.channels(), g.d_xbc);
  tokens("d_dt", heads, g.d_dt);
  columns("d_dtraw", mamba2::dt_column(call.d_model), heads, call.width(), g.d_in_proj);
  tokens("d_conv", call.channels(), g.d_conv);
  columns("d_xbc_in", inner, call.channels(), call.width(), g.d_in_proj);
  tokens("d_norm", call.d_model, norms.d_normed);
}

}  // namespace samba
