// Rotated queries and keys, and the trapezoid weights (spec 40 sections 3.6, 3.8).
//
//   q, k: [M, H, 128] rotated; qk_chain: [M, H]; gamma, scale: (batch, T, H); k_scaled: (batch, T, H, 128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba3_rotate.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/mamba3-inl.h"
#include "samba/backends/cpu/mamba3.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace {
using namespace mamba3_lanes;

constexpr Index kBlock = 8;  // (token, head) rows side by side

// Pairs [0, 32) of x turn by the angles of `cosine` and `sine`, the others are copied.
void rotate_row(const float* x, const float* cosine, const float* sine, float* out) {
  each_vector(R, [&](Index j) {
    V x0, x1;
    hn::LoadInterleaved2(D(), x + 2 * j, x0, x1);
    x0 = flush_operand(D(), x0);
    x1 = flush_operand(D(), x1);
    const V c = load(cosine + j), s = load(sine + j);
    hn::StoreInterleaved2(flush_store(D(), sub(mul(x0, c), mul(x1, s))), flush_store(D(), add(mul(x0, s), mul(x1, c))),
                          D(), out + 2 * j);
  });
  each_vector(N - 2 * R, [&](Index n) { store(load(x + 2 * R + n), out + 2 * R + n); });
}

// Rows [first, last) of (token, head).
void rotate_part(const Mamba3Call& call, Index first, Index last) {
  const Index heads = call.heads();
  HWY_ALIGN float q[kBlock * N], k[kBlock * N], cosine[R], sine[R];
  for (Index begin = first; begin < last; begin += kBlock) {
    const Index rows = std::min(kBlock, last - begin);
    for (Index i = 0; i < rows; ++i) {
      const Index row = begin + i, token = row / heads, head = row % heads;
      each_vector(N, [&](Index n) {
        store(add(load(call.c_normed + token * N + n), load(call.c_bias + head * N + n)), q + i * N + n);
        store(add(load(call.b_normed + token * N + n), load(call.b_bias + head * N + n)), k + i * N + n);
      });
      each_vector(R, [&](Index r) {
        const V angle = load(call.angles + row * R + r);
        store(elementary::cos(lanes(), angle), cosine + r);
        store(elementary::sin(lanes(), angle), sine + r);
      });
      rotate_row(q + i * N, cosine, sine, call.current.q + row * N);
      rotate_row(k + i * N, cosine, sine, call.current.k + row * N);
    }
    row_dots(rows, N, q, N, k, N, [&](Index i, float chain) { call.qk_chain[begin + i] = chain; });
  }
}

// Working rows [first, last) of (batch, t).
void weigh_part(const Mamba3Call& call, Index first, Index last) {
  const Index heads = call.heads(), working = call.working_rows();
  const auto value = [&](float* Mamba3Rows::*piece, Index batch, Index t, Index head) {
    const bool buffered = t < call.buffered;
    const Mamba3Rows& rows = buffered ? call.buffer : call.current;
    return (rows.*piece)[(batch * rows.rows + (buffered ? t : t - call.buffered)) * heads + head];
  };
  for (Index row = first; row < last; ++row) {
    const Index batch = row / working, t = row % working;
    const bool buffered = t < call.buffered;
    const Mamba3Rows& rows = buffered ? call.buffer : call.current;
    const Index source = batch * rows.rows + (buffered ? t : t - call.buffered);
    for (Index h = 0; h < heads; ++h) {
      const float gamma = samba::mul(rows.dt[source * heads + h], rows.sigma[source * heads + h]);
      float beta = 0.0F;
      if (t + 1 < working) {
        beta = samba::mul(value(&Mamba3Rows::dt, batch, t + 1, h),
                          samba::sub(1.0F, value(&Mamba3Rows::sigma, batch, t + 1, h)));
      }
      const float scale = samba::add(gamma, beta);
      call.gamma[row * heads + h] = gamma;
      call.scale[row * heads + h] = scale;
      const V factor = constant(scale);
      const float* k = rows.k + (source * heads + h) * N;
      float* out = call.k_scaled + (row * heads + h) * N;
      each_vector(N, [&](Index n) { store(mul(load(k + n), factor), out + n); });
    }
  }
}

}  // namespace
}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {
HWY_EXPORT(rotate_part);
HWY_EXPORT(weigh_part);
}  // namespace

void Mamba3Cpu::rotate(const Mamba3Call& call) {
  context_.parallel(call.new_rows() * call.heads(), 8, [&](Index first, Index last, int) {
    SAMBA_CPU_KERNEL(context_, rotate_part)(call, first, last);
  });
}

void Mamba3Cpu::weigh(const Mamba3Call& call) {
  if (is_step(call)) return step_weigh(call);
  context_.parallel(call.batch * call.working_rows(), 8, [&](Index first, Index last, int) {
    SAMBA_CPU_KERNEL(context_, weigh_part)(call, first, last);
  });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
