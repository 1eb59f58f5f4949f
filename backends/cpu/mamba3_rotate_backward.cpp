// From the gradients of rotated queries and scaled keys back to B, C, dt, trap and theta (spec 41 sections 3.3, 3.9,
// 3.10, 3.12). Rows are (token, head); d_q, d_k, d_krot, d_qraw, d_kraw, d_b, d_c: [M, H, 128]; d_theta: [M, H, 32].
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba3_rotate_backward.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/mamba3-inl.h"
#include "samba/backends/cpu/mamba3.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace {
using namespace mamba3_lanes;

struct Pair {
  V even, odd;
};

HWY_INLINE Pair load_pair(const float* p) {
  Pair x;
  hn::LoadInterleaved2(D(), p, x.even, x.odd);
  return {flush_operand(D(), x.even), flush_operand(D(), x.odd)};
}

// Turns the incoming pair back, and adds the pair's two steps of d_theta. `raw`: the un-rotated pair.
HWY_INLINE Pair turn_back(Pair d, Pair raw, V c, V s, V& d_theta) {
  const V first = sub(negate(mul(raw.even, s)), mul(raw.odd, c));
  const V second = sub(mul(raw.even, c), mul(raw.odd, s));
  d_theta = mad(d.even, first, d_theta);
  d_theta = mad(d.odd, second, d_theta);
  return {add(mul(d.even, c), mul(d.odd, s)), sub(mul(d.odd, c), mul(d.even, s))};
}

HWY_INLINE void store_pair(Pair x, float* p) {
  hn::StoreInterleaved2(flush_store(D(), x.even), flush_store(D(), x.odd), D(), p);
}

// q_raw and k_raw: the un-rotated, biased vectors of the row.
void rotate_row_back(const Mamba3Call& call, const Mamba3Gradients& g, Index row, const float* q_raw,
                     const float* k_raw) {
  each_vector(R, [&](Index j) {
    const V angle = load(call.angles + row * R + j);
    const V c = flush_operand(D(), elementary::cos(lanes(), angle));
    const V s = flush_operand(D(), elementary::sin(lanes(), angle));
    V d_theta = zero();
    const Index at = row * N + 2 * j;
    store_pair(turn_back(load_pair(g.d_q + at), load_pair(q_raw + 2 * j), c, s, d_theta), g.d_qraw + at);
    store_pair(turn_back(load_pair(g.d_krot + at), load_pair(k_raw + 2 * j), c, s, d_theta), g.d_kraw + at);
    store(d_theta, g.d_theta + row * R + j);
  });
  each_vector(N - 2 * R, [&](Index n) {
    const Index at = row * N + 2 * R + n;
    store(load(g.d_q + at), g.d_qraw + at);
    store(load(g.d_krot + at), g.d_kraw + at);
  });
}

// Rows [first, last).
void rows_part(const Mamba3Call& call, const Mamba3Gradients& g, Index first, Index last) {
  const Index heads = call.heads();
  HWY_ALIGN float q_raw[N], k_raw[N];
  for (Index row = first; row < last; ++row) {
    const Index token = row / heads, head = row % heads;
    const V scale = broadcast(call.scale + row);
    const V diagonal = constant(samba::mul(g.d_qkdot[row], call.gamma[row]));
    each_vector(N, [&](Index n) {
      store(add(load(call.c_normed + token * N + n), load(call.c_bias + head * N + n)), q_raw + n);
      store(add(load(call.b_normed + token * N + n), load(call.b_bias + head * N + n)), k_raw + n);
      store(mul(load(g.d_k + row * N + n), scale), g.d_krot + row * N + n);
    });
    rotate_row_back(call, g, row, q_raw, k_raw);
    each_vector(N, [&](Index n) {
      const Index at = row * N + n;
      store(add(mul(diagonal, load(q_raw + n)), load(g.d_kraw + at)), g.d_b + at);
      store(add(mul(diagonal, load(k_raw + n)), load(g.d_qraw + at)), g.d_c + at);
    });
  }
  row_dots(last - first, N, g.d_k + first * N, N, call.current.k + first * N, N,
           [&](Index i, float chain) { g.d_scale[first + i] = chain; });
}

// d_dt_qk, d_trap_qk, d_dt_cur and d_trap of the rows [first, last), once every d_scale is known.
void trapezoid_part(const Mamba3Call& call, const Mamba3Gradients& g, Index first, Index last) {
  using samba::add, samba::mul, samba::sub;
  const Index heads = call.heads();
  for (Index row = first; row < last; ++row) {
    const float sigma = call.current.sigma[row], dt = call.current.dt[row];
    const float rest = sub(1.0F, sigma);
    const float d_gamma = mul(g.d_qkdot[row], call.qk_chain[row]);
    g.d_dt_qk[row] = mul(d_gamma, sigma);
    g.d_trap_qk[row] = mul(mul(mul(d_gamma, dt), sigma), rest);
    const float d_scale = g.d_scale[row];
    float d_dt = add(g.d_dt_qk[row], mul(d_scale, sigma));
    float d_trap = add(g.d_trap_qk[row], mul(mul(mul(d_scale, dt), sigma), rest));
    if (row / heads % call.tokens > 0) {
      const float before = g.d_scale[row - heads];
      d_dt = add(d_dt, mul(before, rest));
      const float e = -mul(before, dt);
      d_trap = add(d_trap, mul(mul(e, sigma), rest));
    }
    g.d_dt_cur[row] = d_dt;
    g.d_trap[row] = d_trap;
  }
}

}  // namespace
}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {
HWY_EXPORT(rows_part);
HWY_EXPORT(trapezoid_part);
}  // namespace

void Mamba3Cpu::rotate_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) {
  const Index rows = call.new_rows() * call.heads();
  context_.parallel(rows, 8, [&](Index first, Index last, int) {
    SAMBA_CPU_KERNEL(context_, rows_part)(call, gradients, first, last);
  });
  context_.parallel(rows, 64, [&](Index first, Index last, int) {
    SAMBA_CPU_KERNEL(context_, trapezoid_part)(call, gradients, first, last);
  });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
