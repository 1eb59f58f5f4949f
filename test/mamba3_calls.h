// Calls of the Mamba-3 kernels on random values, for the tests that compare executors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "samba/kernels/executor.h"
#include "samba/kernels/extended_gradients.h"
#include "samba/numerics/philox.h"

namespace samba::mamba3_calls {

using Floats = std::vector<float>;
constexpr Index P = mamba3::kHeadDim, N = mamba3::kStateSize, R = mamba3::kAngles, Q = mamba3::kChunk;

enum class Values { ordinary, planted, tiny, huge };

struct Case {
  Index batch, heads, tokens;
  Values values;
  Index buffered = 0;
  bool state = false;
  bool pending = false;
};

inline std::string describe(const Case& c) {
  const char* const names[] = {"ordinary", "planted", "tiny", "huge"};
  return "batch " + std::to_string(c.batch) + ", heads " + std::to_string(c.heads) + ", tokens " +
         std::to_string(c.tokens) + ", values " + names[static_cast<int>(c.values)] + ", buffered " +
         std::to_string(c.buffered) + (c.state ? ", state" : "") + (c.pending ? ", pending" : "");
}

// Values of one kind; `stream` makes every array its own.
inline Floats draw(const Case& c, std::uint32_t stream, Index count, float mean, float deviation) {
  Floats values(static_cast<std::size_t>(count));
  const float factor = c.values == Values::tiny ? 1e-19F : (c.values == Values::huge ? 1e12F : 1.0F);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = factor * stream_normal(5, stream, i, mean, deviation);
    const std::uint32_t word = stream_word(6, stream, i);
    if (c.values == Values::planted && word % 3 == 0) {
      const std::uint32_t bits[] = {0x00000000U, 0x80000000U, 0x00000001U, 0x80000001U, 0x007FFFFFU, 0x807FFFFFU,
                                    0x00800000U, 0x80800000U, 0x20000000U, 0xA0000000U, 0x1F800000U, 0x9F000000U};
      values[i] = from_bits(bits[word / 3 % 12]);
    }
  }
  return values;
}

// All arrays of one call by name, sized for the case; outputs hold NaN before the call. Inputs are drawn once a case.
struct Arrays {
  std::map<std::string, Floats> pieces;
  std::map<std::string, Floats>* drawn = nullptr;

  float* add(const std::string& name, Floats values) {
    Floats& piece = pieces[name] = std::move(values);
    return piece.data();
  }
  float* input(const Case& c, const std::string& name, Index count, float mean, float deviation) {
    Floats& values = (*drawn)[name];
    const auto stream = static_cast<std::uint32_t>(drawn->size());
    if (values.empty()) values = draw(c, stream, count, mean, deviation);
    return add(name, values);
  }
  float* output(const std::string& name, Index count) {
    return add(name, Floats(static_cast<std::size_t>(count), kQuietNan));
  }
};

inline Mamba3Call make_call(const Case& c, Arrays& a, bool keep) {
  Mamba3Call call;
  call.batch = c.batch;
  call.tokens = c.tokens;
  call.d_model = 32 * c.heads;
  call.buffered = c.buffered;
  const Index h = c.heads, m = call.new_rows(), t = c.batch * call.working_rows(), chunks = c.batch * h * call.chunks();
  const auto input = [&](const std::string& name, Index count, float mean, float deviation) {
    return a.input(c, name, count, mean, deviation);
  };
  call.dt_bias = input("dt_bias", h, -1.0F, 0.5F);
  call.b_norm_weight = input("b_norm", N, 1.0F, 0.2F);
  call.c_norm_weight = input("c_norm", N, 1.0F, 0.2F);
  call.b_bias = input("b_bias", h * N, 0.5F, 0.5F);
  call.c_bias = input("c_bias", h * N, 0.5F, 0.5F);
  call.d = input("d", h, 1.0F, 0.5F);
  const Index width = mamba3::projection_width(call.d_model);
  float* in_proj = input("in_proj", m * width, 0.0F, 1.0F);
  call.in_proj = in_proj;
  if (c.state) {
    call.theta = input("theta", c.batch * h * R, 0.0F, 2.0F);
    call.h = input("h", c.batch * h * P * N, 0.0F, 0.5F);
    const Index rows = c.batch * Q * h;
    call.buffer = {input("buffer_q", rows * N, 0.0F, 1.0F),
                   input("buffer_k", rows * N, 0.0F, 1.0F),
                   input("buffer_v", rows * P, 0.0F, 1.0F),
                   input("buffer_dt", rows, 0.3F, 0.1F),
                   input("buffer_sigma", rows, 0.5F, 0.2F),
                   input("buffer_adt", rows, -0.2F, 0.1F),
                   Q,
                   h * P};
  }
  if (c.pending) {
    call.pending_k = input("pending_k", c.batch * h * N, 0.0F, 1.0F);
    call.pending_v = input("pending_v", c.batch * h * P, 0.0F, 1.0F);
  }
  call.a = a.output("a", m * h);
  call.b_normed = a.output("b_normed", m * N);
  call.c_normed = a.output("c_normed", m * N);
  call.angle_rate = a.output("angle_rate", m * R);
  call.current = {a.output("q", m * h * N),
                  a.output("k", m * h * N),
                  in_proj + mamba3::columns(call.d_model).x,
                  a.output("dt", m * h),
                  a.output("sigma", m * h),
                  a.output("adt", m * h),
                  c.tokens,
                  width};
  call.angles = a.output("angles", m * h * R);
  call.qk_chain = a.output("qk_chain", m * h);
  call.gamma = a.output("gamma", t * h);
  call.scale = a.output("scale", t * h);
  call.k_scaled = a.output("k_scaled", t * h * N);
  call.skip = a.output("skip", m * h * P);
  call.gate = a.output("gate", m * h * P);
  if (keep) {
    call.h_last = a.output("h_last", c.batch * h * P * N);
    call.dacs = a.output("dacs", chunks * Q);
    call.decay = a.output("decay", chunks * Q * Q);
    call.scores = a.output("scores", chunks * Q * Q);
    call.pass_states = a.output("pass_states", chunks * P * N);
    call.qkdot = a.output("qkdot", m * h);
    call.y_intra = a.output("y_intra", m * h * P);
    call.y_state = a.output("y_state", m * h * P);
  }
  return call;
}

inline Mamba3Gradients make_gradients(const Case& c, Arrays& a) {
  const Index h = c.heads, m = c.batch * c.tokens, chunks = c.batch * h * ((c.tokens + Q - 1) / Q);
  Mamba3Gradients g;
  g.d_gate = a.input(c, "d_gate", m * h * P, 0.0F, 1.0F);
  const struct {
    const char* name;
    float** target;
    Index count;
  } outputs[] = {
      {"d_skip", &g.d_skip, m * h * P},
      {"d_v_skip", &g.d_v_skip, m * h * P},
      {"d_qkdot", &g.d_qkdot, m * h},
      {"d_q16", &g.d_q16, m * h * N},
      {"d_k16", &g.d_k16, m * h * N},
      {"d_v16", &g.d_v16, m * h * P},
      {"d_seg", &g.d_seg, chunks * Q * Q},
      {"d_adt_seg", &g.d_adt_seg, m * h},
      {"d_v17", &g.d_v17, m * h * P},
      {"d_dacs_read", &g.d_dacs_read, m * h},
      {"d_dacs_rec", &g.d_dacs_rec, m * h},
      {"d_q", &g.d_q, m * h * N},
      {"d_k", &g.d_k, m * h * N},
      {"d_v", &g.d_v, m * h * P},
      {"d_dacs", &g.d_dacs, m * h},
      {"d_adt_dacs", &g.d_adt_dacs, m * h},
      {"d_adt", &g.d_adt, m * h},
      {"state_gradients", &g.state_gradients, chunks * P * N},
      {"d_dt_qk", &g.d_dt_qk, m * h},
      {"d_trap_qk", &g.d_trap_qk, m * h},
      {"d_scale", &g.d_scale, m * h},
      {"d_krot", &g.d_krot, m * h * N},
      {"d_qraw", &g.d_qraw, m * h * N},
      {"d_kraw", &g.d_kraw, m * h * N},
      {"d_theta", &g.d_theta, m * h * R},
      {"d_b", &g.d_b, m * h * N},
      {"d_c", &g.d_c, m * h * N},
      {"d_dt_cur", &g.d_dt_cur, m * h},
      {"d_trap", &g.d_trap, m * h},
      {"d_theta_suffix", &g.d_theta_suffix, m * h * R},
      {"d_dt_angle", &g.d_dt_angle, m * h},
      {"d_dd_dt", &g.d_dd_dt, m * h},
      {"d_dd_a", &g.d_dd_a, m * h},
      {"b_weight_rows", &g.b_weight_rows, m * N},
      {"c_weight_rows", &g.c_weight_rows, m * N},
      {"d_in_proj", &g.d_in_proj, m * mamba3::projection_width(32 * h)},
  };
  for (const auto& output : outputs) *output.target = a.output(output.name, output.count);
  return g;
}

// Scores are specified below the diagonal only, in real rows.
inline void clear_unspecified_scores(const Case& c, Floats& scores) {
  const Index chunks = (c.tokens + Q - 1) / Q;
  for (std::size_t at = 0; at < scores.size(); ++at) {
    const auto cell = static_cast<Index>(at);
    const Index chunk = cell / (Q * Q) % chunks, i = cell / Q % Q, j = cell % Q;
    if (j >= i || chunk * Q + i >= c.tokens) scores[at] = 0.0F;
  }
}

enum class Run { forward, backward, backward_products };  // the last of samba.fp32.v2

inline Arrays run(Executor& executor, const Case& c, Run what, std::map<std::string, Floats>& drawn) {
  Arrays arrays;
  arrays.drawn = &drawn;
  const Mamba3Call call = make_call(c, arrays, !c.state);
  Mamba3Kernels& kernels = executor.mamba3();
  kernels.prepare_tokens(call);
  kernels.accumulate_angles(call);
  kernels.rotate(call);
  kernels.weigh(call);
  kernels.scan(call);
  if (what != Run::forward) {
    const Mamba3Gradients gradients = make_gradients(c, arrays);
    kernels.gate_backward(call, gradients);
    if (what == Run::backward) {
      kernels.scan_backward(call, gradients);
    } else {
      dynamic_cast<Mamba3Products&>(kernels).scan_backward_products(call, gradients);
    }
    kernels.rotate_backward(call, gradients);
    kernels.tokens_backward(call, gradients);
  }
  executor.memory().synchronize();
  if (c.state) {
    arrays.pieces.erase("k_scaled");  // scratch when nothing is kept
  } else {
    clear_unspecified_scores(c, arrays.pieces["scores"]);
  }
  return arrays;
}

}  // namespace samba::mamba3_calls
