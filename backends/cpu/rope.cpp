// out[j] = in[j] cos[i] + partner sin[i], i = j mod half: two products and one add, never fused (spec 20 section 2).
// The partner of a low column is minus the high one, of a high column the low one; a backward turns the other way.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/rope.cpp"
#include <hwy/foreach_target.h>  // first of all, it includes this file again for every target

#include "samba/backends/cpu/lanes-inl.h"
#include "samba/kernels/rope.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace rope {

// Columns [first, first + lanes) of both halves of one head.
template <class D>
HWY_INLINE void rotate_columns(D d, Index first, Index half, bool backward, const float* in, const float* cosines,
                               const float* sines, float* out) {
  const auto load = [d](const float* from) { return flush_operand(d, hn::LoadU(d, from)); };
  const auto low = load(in + first);
  const auto high = load(in + first + half);
  const auto cosine = load(cosines + first);
  const auto sine = load(sines + first);
  const auto low_partner = backward ? high : hn::Neg(high);
  const auto high_partner = backward ? hn::Neg(low) : low;
  const auto combine = [&](auto own, auto partner) {
    return flush_store(d, hn::Add(flush_operand(d, hn::Mul(own, cosine)), flush_operand(d, hn::Mul(partner, sine))));
  };
  hn::StoreU(combine(low, low_partner), d, out + first);
  hn::StoreU(combine(high, high_partner), d, out + first + half);
}

// Rows [first, last) of [batch * length, n_heads * head_dim].
void rope_rows(const RopeShape& shape, bool backward, const float* in, const float* cosines, const float* sines,
               float* out, Index first, Index last) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<Index>(hn::Lanes(d));
  const Index half = shape.rotary_dim / 2;
  for (Index row = first; row < last; ++row) {
    const Index table = (shape.first_position + row % shape.length) * half;
    for (Index h = 0; h < shape.n_heads; ++h) {
      const Index at = (row * shape.n_heads + h) * shape.head_dim;
      Index i = 0;
      for (; i + lanes <= half; i += lanes) {
        rotate_columns(d, i, half, backward, in + at, cosines + table, sines + table, out + at);
      }
      for (; i < half; ++i) rotate_columns(one, i, half, backward, in + at, cosines + table, sines + table, out + at);
      for (Index j = shape.rotary_dim; j < shape.head_dim; ++j) out[at + j] = flush(in[at + j]);
    }
  }
}

}  // namespace rope

using rope::rope_rows;

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "samba/backends/cpu/rope.h"

namespace samba::cpu {

HWY_EXPORT(rope_rows);

void RopeCpu::turn(const RopeShape& shape, bool backward, const float* in, const float* cosines, const float* sines,
                   float* out) {
  const Index row_floats = std::max<Index>(1, shape.n_heads * shape.head_dim);
  context_.parallel(shape.batch * shape.length, 1 + 8192 / row_floats, [&](Index first, Index last, int) {
    SAMBA_CPU_KERNEL(context_, rope_rows)(shape, backward, in, cosines, sines, out, first, last);
  });
}

void RopeCpu::rotate(const RopeShape& shape, const float* x, const float* cosines, const float* sines, float* out) {
  turn(shape, false, x, cosines, sines, out);
}

void RopeCpu::rotate_backward(const RopeShape& shape, const float* d_out, const float* cosines, const float* sines,
                              float* dx) {
  turn(shape, true, d_out, cosines, sines, dx);
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
