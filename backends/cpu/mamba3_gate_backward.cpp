// The two ends of the Mamba-3 backward: gate and skip (spec 41 section 3.2), and what is left per token once the scan
// and the rotation are done: A, dt, angles, the B and C norms, the row of d_in_proj (sections 3.11 to 3.16).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba3_gate_backward.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/mamba3-inl.h"
#include "samba/backends/cpu/mamba3.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace {
using namespace mamba3_lanes;

constexpr Index kBlock = 8;  // tokens side by side

// Tokens [first, last), all their heads.
void gate_part(const Mamba3Call& call, const Mamba3Gradients& g, Index first, Index last) {
  const Index heads = call.heads();
  const Index width = mamba3::projection_width(call.d_model);
  const mamba3::Columns column = mamba3::columns(call.d_model);
  const V one = constant(1.0F);
  for (Index token = first; token < last; ++token) {
    for (Index h = 0; h < heads; ++h) {
      const Index row = token * heads + h;
      const float* z = call.in_proj + token * width + column.z + h * P;
      float* d_z = g.d_in_proj + token * width + column.z + h * P;
      const V w = constant(samba::add(call.d[h], samba::mul(call.qk_chain[row], call.gamma[row])));
      each_vector(P, [&](Index p) {
        const V zp = load(z + p), d_gate = load(g.d_gate + row * P + p);
        const V d_skip = mul(d_gate, silu(zp));
        const V sg = sigmoid(zp);
        const V mid = mad(zp, sub(one, sg), one);
        store(d_skip, g.d_skip + row * P + p);
        store(mul(mul(d_gate, load(call.skip + row * P + p)), mul(sg, mid)), d_z + p);
        store(mul(d_skip, w), g.d_v_skip + row * P + p);
      });
    }
    const float* v = call.in_proj + token * width + column.x;
    row_dots(heads, P, g.d_skip + token * heads * P, P, v, P,
             [&](Index h, float chain) { g.d_qkdot[token * heads + h] = chain; });
  }
}

// Suffix sums of d_theta over whole sequences [first, last) of (batch, head), by blocks of 64 tokens (section 3.13).
void suffix_part(const Mamba3Call& call, const Mamba3Gradients& g, Index first, Index last) {
  const Index heads = call.heads();
  for (Index sequence = first; sequence < last; ++sequence) {
    const Index batch = sequence / heads, head = sequence % heads;
    each_vector(R, [&](Index r) {
      V blocks = zero();  // the totals of the blocks after this one, added from the last one down
      for (Index chunk = call.chunks() - 1; chunk >= 0; --chunk) {
        V carry = blocks, total = zero();
        const Index begin = chunk * Q;
        for (Index t = begin + mamba3_real_rows(call, chunk) - 1; t >= begin; --t) {
          const Index at = ((batch * call.tokens + t) * heads + head) * R + r;
          const V d_theta = load(g.d_theta + at);
          total = add(total, d_theta);
          carry = add(carry, d_theta);
          store(carry, g.d_theta_suffix + at);
        }
        blocks = add(blocks, total);
      }
    });
  }
}

// The head scalars dd_dt and dd_A of `count` rows gathered in scratch (sections 3.11 and 3.14).
struct HeadRuns {
  float *raw_a, *pre_dt, *a, *dt, *d_adt, *d_dt, *d_dt_angle, *d_dd_dt, *d_dd_a;
};
constexpr Index kRuns = 9;

void head_values(Index count, const HeadRuns& s) {
  const SimdLanes<D> l = lanes();
  const V one = constant(1.0F);
  const V floor = constant(-from_bits(0x38D1B717U));
  each_vector(count, [&](Index i) {
    const V d_adt = load(s.d_adt + i), dt = load(s.dt + i);
    const V d_a = mul(d_adt, dt), d_dt_a = mul(d_adt, load(s.a + i));
    const V raw = load(s.raw_a + i);
    const auto rising = l.le(zero(), raw);
    const V below = div(one, sub(one, raw));
    const V ht = select(rising, add(one, raw), below);
    const V slope = select(rising, one, mul(below, below));
    store(select(l.lt(floor, negate(ht)), zero(), negate(mul(d_a, slope))), s.d_dd_a + i);

    const V total = add(add(load(s.d_dt + i), d_dt_a), load(s.d_dt_angle + i));
    const V pre = load(s.pre_dt + i);
    const V softplus_slope = select(l.le(pre, constant(20.0F)), sigmoid(pre), one);
    store(mul(total, softplus_slope), s.d_dd_dt + i);
  });
}

void head_rows(const Mamba3Call& call, const Mamba3Gradients& g, Index token, Index rows, float* scratch) {
  const Index heads = call.heads(), count = rows * heads, first = token * heads;
  const Index width = mamba3::projection_width(call.d_model);
  const mamba3::Columns column = mamba3::columns(call.d_model);
  const Index run = round_up_to_lanes(kBlock * heads);
  HeadRuns s{};
  float** const pieces[kRuns] = {&s.raw_a, &s.pre_dt,     &s.a,       &s.dt,    &s.d_adt,
                                 &s.d_dt,  &s.d_dt_angle, &s.d_dd_dt, &s.d_dd_a};
  for (float** piece : pieces) {
    *piece = scratch;
    std::fill_n(scratch, run, 0.0F);
    scratch += run;
  }
  for (Index row = 0; row < rows; ++row) {
    const float* line = call.in_proj + (token + row) * width;
    for (Index h = 0; h < heads; ++h) {
      s.raw_a[row * heads + h] = line[column.a + h];
      s.pre_dt[row * heads + h] = samba::add(line[column.dt + h], call.dt_bias[h]);
      const float* suffix = g.d_theta_suffix + (first + row * heads + h) * R;
      const float* rate = call.angle_rate + (token + row) * R;
      float chain = 0.0F;
      for (Index r = 0; r < R; ++r) chain = mad_one(suffix[r], rate[r], chain);
      s.d_dt_angle[row * heads + h] = flush(chain);
    }
  }
  std::copy_n(call.a + first, count, s.a);
  std::copy_n(call.current.dt + first, count, s.dt);
  std::copy_n(g.d_adt + first, count, s.d_adt);
  std::copy_n(g.d_dt_cur + first, count, s.d_dt);
  head_values(round_up_to_lanes(count), s);
  std::copy_n(s.d_dt_angle, count, g.d_dt_angle + first);
  std::copy_n(s.d_dd_dt, count, g.d_dd_dt + first);
  std::copy_n(s.d_dd_a, count, g.d_dd_a + first);
  for (Index row = 0; row < rows; ++row) {
    float* line = g.d_in_proj + (token + row) * width;
    const Index from = first + row * heads;
    std::copy_n(g.d_dd_dt + from, heads, line + column.dt);
    std::copy_n(g.d_dd_a + from, heads, line + column.a);
    std::copy_n(g.d_trap + from, heads, line + column.trap);
    std::copy_n(g.d_v + from * P, heads * P, line + column.x);
  }
}

// d_angle of one token (section 3.13).
void angle_row(const Mamba3Call& call, const Mamba3Gradients& g, Index token, const float* angle, float* d_angle) {
  const Index heads = call.heads();
  const V one = constant(1.0F), pi = constant(from_bits(0x40490FDBU));
  each_vector(R, [&](Index r) {
    V sum = zero();
    for (Index h = 0; h < heads; ++h) {
      const Index row = token * heads + h;
      sum = add(sum, mul(load(g.d_theta_suffix + row * R + r), broadcast(call.current.dt + row)));
    }
    const V turn = flush_operand(D(), elementary::tanh(lanes(), load(angle + r)));
    store(mul(sum, mul(pi, sub(one, mul(turn, turn)))), d_angle + r);
  });
}

// One of the two norms for `rows` <= kBlock tokens (section 3.15). `d_rows`: [rows][H][128]; x and d_x: rows of
// in_proj and d_in_proj at the norm's columns.
void norm_rows(Index rows, Index heads, const float* d_rows, const float* weight, const float* x, Index x_stride,
               float* weight_rows, float* d_x) {
  HWY_ALIGN float weighted[kBlock * N];
  float rstd[kBlock];
  row_dots(rows, N, x, x_stride, x, x_stride, [&](Index row, float sum) {
    const float mean = samba::div(sum, static_cast<float>(N));
    rstd[row] = flush(samba::elementary::rsqrt(samba::add(mean, from_bits(0x3727C5ACU))));
    const V scale = constant(rstd[row]);
    each_vector(N, [&](Index n) {
      V total = zero();
      for (Index h = 0; h < heads; ++h) total = add(total, load(d_rows + (row * heads + h) * N + n));
      store(mul(total, load(weight + n)), weighted + row * N + n);
      store(mul(total, mul(load(x + row * x_stride + n), scale)), weight_rows + row * N + n);
    });
  });
  row_dots(rows, N, weighted, N, x, x_stride, [&](Index row, float dot) {
    const V scale = constant(rstd[row]);
    const V correction = constant(samba::mul(samba::mul(rstd[row], rstd[row]), samba::div(dot, static_cast<float>(N))));
    each_vector(N, [&](Index n) {
      const V inner = sub(load(weighted + row * N + n), mul(load(x + row * x_stride + n), correction));
      store(mul(scale, inner), d_x + row * x_stride + n);
    });
  });
}

Index tokens_scratch(Index heads) { return kRuns * round_up_to_lanes(kBlock * heads); }

// Tokens [first, last).
void tokens_part(const Mamba3Call& call, const Mamba3Gradients& g, Index first, Index last, float* scratch) {
  const Index heads = call.heads();
  const Index width = mamba3::projection_width(call.d_model);
  const mamba3::Columns column = mamba3::columns(call.d_model);
  for (Index token = first; token < last; token += kBlock) {
    const Index rows = std::min(kBlock, last - token);
    const float* x = call.in_proj + token * width;
    float* d_x = g.d_in_proj + token * width;
    head_rows(call, g, token, rows, scratch);
    for (Index row = 0; row < rows; ++row) {
      angle_row(call, g, token + row, x + row * width + column.angle, d_x + row * width + column.angle);
    }
    norm_rows(rows, heads, g.d_b + token * heads * N, call.b_norm_weight, x + column.b, width,
              g.b_weight_rows + token * N, d_x + column.b);
    norm_rows(rows, heads, g.d_c + token * heads * N, call.c_norm_weight, x + column.c, width,
              g.c_weight_rows + token * N, d_x + column.c);
  }
}

}  // namespace
}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {
HWY_EXPORT(gate_part);
HWY_EXPORT(suffix_part);
HWY_EXPORT(tokens_scratch);
HWY_EXPORT(tokens_part);
}  // namespace

void Mamba3Cpu::gate_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) {
  context_.parallel(call.new_rows(), 8, [&](Index first, Index last, int) {
    SAMBA_CPU_KERNEL(context_, gate_part)(call, gradients, first, last);
  });
}

void Mamba3Cpu::tokens_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) {
  context_.parallel(call.batch * call.heads(), 1, [&](Index first, Index last, int) {
    SAMBA_CPU_KERNEL(context_, suffix_part)(call, gradients, first, last);
  });
  const Index floats = SAMBA_CPU_KERNEL(context_, tokens_scratch)(call.heads());
  context_.parallel(call.new_rows(), 8, [&](Index first, Index last, int thread) {
    SAMBA_CPU_KERNEL(context_, tokens_part)(call, gradients, first, last, context_.scratch(thread, floats));
  });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
