#include "samba/blocks/mamba3/mamba3_stages.h"

namespace samba {

namespace {

std::size_t float_bytes(Index count) { return static_cast<std::size_t>(count) * sizeof(float); }

class Recorder {
 public:
  Recorder(const Mamba3Call& call, Memory& memory, Workspace& workspace, StageRecorder& stages)
      : call_(call), memory_(memory), workspace_(workspace), stages_(stages) {}

  // (B, L, width)
  void tokens(std::string_view name, Index width, const float* values) {
    stages_.record(name, {call_.batch, call_.tokens, width}, values);
  }

  void shaped(std::string_view name, const Shape& shape, const float* values) { stages_.record(name, shape, values); }

  // (B, T, width), the whole working sequence in one array
  void working(std::string_view name, Index width, const float* values) {
    stages_.record(name, {call_.batch, call_.working_rows(), width}, values);
  }

  // (B, T, width) from the rows of the buffer followed by those of the call
  void joined(std::string_view name, Index width, const float* buffered, Index buffered_stride, const float* current,
              Index current_stride) {
    Workspace::Scope scope(workspace_);
    const Index length = call_.working_rows();
    float* all = workspace_.floats(call_.batch * length * width);
    for (Index b = 0; b < call_.batch; ++b) {
      for (Index t = 0; t < length; ++t) {
        const float* row = t < call_.buffered ? buffered + (b * call_.buffer.rows + t) * buffered_stride
                                              : current + (b * call_.tokens + t - call_.buffered) * current_stride;
        memory_.copy(all + (b * length + t) * width, row, float_bytes(width));
      }
    }
    working(name, width, all);
  }

  // (B, L, width) cut out of rows of the in_proj width
  void columns(std::string_view name, Index first, Index width, const float* values) {
    Workspace::Scope scope(workspace_);
    const Index stride = mamba3::projection_width(call_.d_model);
    float* cut = workspace_.floats(call_.new_rows() * width);
    for (Index m = 0; m < call_.new_rows(); ++m) {
      memory_.copy(cut + m * width, values + m * stride + first, float_bytes(width));
    }
    tokens(name, width, cut);
  }

 private:
  const Mamba3Call& call_;
  Memory& memory_;
  Workspace& workspace_;
  StageRecorder& stages_;
};

}  // namespace

void record_mamba3_forward(const Mamba3Activations& activations, Memory& memory, Workspace& workspace,
                           StageRecorder& stages) {
  using namespace mamba3;
  const Mamba3Call& call = activations.call;
  const Index heads = call.heads();
  const Index inner = d_inner(call.d_model);
  const Index width = projection_width(call.d_model);
  const Index keys = heads * kStateSize;
  const Index chunks = call.chunks();
  Recorder record(call, memory, workspace, stages);

  record.tokens("norm.sumsq", 1, activations.norm_sumsq);
  record.tokens("norm.out", call.d_model, activations.normed);
  record.tokens("in_proj.out", width, activations.in_proj);
  record.tokens("A.out", heads, call.a);
  record.tokens("dt.out", heads, call.current.dt);
  record.tokens("adt.out", heads, call.current.adt);
  record.tokens("trap.sigma", heads, call.current.sigma);
  record.tokens("bcnorm.B", kStateSize, call.b_normed);
  record.tokens("bcnorm.C", kStateSize, call.c_normed);
  record.joined("v", inner, call.buffer.v, call.buffer.v_stride, call.current.v, call.current.v_stride);
  record.working("gamma", heads, call.gamma);
  record.working("scale", heads, call.scale);
  record.shaped("angle.theta", {call.batch, call.tokens, heads, kAngles}, call.angles);
  record.tokens("qkdot", heads, call.qkdot);
  record.joined("rot.q", keys, call.buffer.q, keys, call.current.q, keys);
  record.joined("rot.k", keys, call.buffer.k, keys, call.current.k, keys);
  record.working("kscale", keys, call.k_scaled);
  record.shaped("dacs", {call.batch, heads, chunks, kChunk}, call.dacs);
  record.shaped("seg.L", {call.batch, heads, chunks, kChunk, kChunk}, call.decay);
  record.shaped("pass.states", {call.batch, chunks, heads, kHeadDim, kStateSize}, call.pass_states);
  record.tokens("yintra", inner, call.y_intra);
  record.tokens("ystate", inner, call.y_state);
  record.tokens("skip", inner, call.skip);
  record.tokens("gate", inner, call.gate);
  record.tokens("out_proj.out", call.d_model, activations.projected);
}

void record_mamba3_backward(const Mamba3Call& call, const Mamba3Gradients& gradients, const float* d_norm,
                            Memory& memory, Workspace& workspace, StageRecorder& stages) {
  using namespace mamba3;
  const Index heads = call.heads();
  const Index inner = d_inner(call.d_model);
  const Index keys = heads * kStateSize;
  const Columns first = mamba3::columns(call.d_model);
  const Shape angles = {call.batch, call.tokens, heads, kAngles};
  Recorder record(call, memory, workspace, stages);

  record.tokens("b.d_gate", inner, gradients.d_gate);
  record.tokens("b.d_skip", inner, gradients.d_skip);
  record.columns("b.d_z", first.z, inner, gradients.d_in_proj);
  record.tokens("b.d_v_skip", inner, gradients.d_v_skip);
  record.tokens("b.d_qkdot", heads, gradients.d_qkdot);
  record.tokens("b.d_dt_qk", heads, gradients.d_dt_qk);
  record.tokens("b.d_trap_qk", heads, gradients.d_trap_qk);
  record.tokens("b.d_q16", keys, gradients.d_q16);
  record.tokens("b.d_k16", keys, gradients.d_k16);
  record.tokens("b.d_v16", inner, gradients.d_v16);
  record.shaped("b.d_seg", {call.batch, heads, call.chunks(), kChunk, kChunk}, gradients.d_seg);
  record.tokens("b.d_adt_seg", heads, gradients.d_adt_seg);
  record.tokens("b.d_v17", inner, gradients.d_v17);
  record.tokens("b.d_dacs_read", heads, gradients.d_dacs_read);
  record.tokens("b.d_dacs_rec", heads, gradients.d_dacs_rec);
  record.tokens("b.d_q", keys, gradients.d_q);
  record.tokens("b.d_k", keys, gradients.d_k);
  record.tokens("b.d_v", inner, gradients.d_v);
  record.tokens("b.d_dacs", heads, gradients.d_dacs);
  record.tokens("b.d_krot", keys, gradients.d_krot);
  record.tokens("b.d_scale", heads, gradients.d_scale);
  record.tokens("b.d_qraw", keys, gradients.d_qraw);
  record.tokens("b.d_kraw", keys, gradients.d_kraw);
  record.shaped("b.d_theta", angles, gradients.d_theta);
  record.tokens("b.d_adt_dacs", heads, gradients.d_adt_dacs);
  record.tokens("b.d_adt", heads, gradients.d_adt);
  record.tokens("b.d_dd_A", heads, gradients.d_dd_a);
  record.tokens("b.d_b", keys, gradients.d_b);
  record.tokens("b.d_c", keys, gradients.d_c);
  record.tokens("b.d_dt_cur", heads, gradients.d_dt_cur);
  record.tokens("b.d_trap", heads, gradients.d_trap);
  record.shaped("b.d_theta_suffix", angles, gradients.d_theta_suffix);
  record.tokens("b.d_dt_angle", heads, gradients.d_dt_angle);
  record.tokens("b.d_dd_dt", heads, gradients.d_dd_dt);
  record.columns("b.d_angle", first.angle, kAngles, gradients.d_in_proj);
  record.columns("b.d_B_raw", first.b, kStateSize, gradients.d_in_proj);
  record.columns("b.d_C_raw", first.c, kStateSize, gradients.d_in_proj);
  record.tokens("b.d_in_proj", projection_width(call.d_model), gradients.d_in_proj);
  record.tokens("b.d_norm", call.d_model, d_norm);
}

}  // namespace samba
