// Channels in the lanes of vectors, for the convolution and the scan of the Mamba-1 and Mamba-2 blocks.
#if defined(SAMBA_CPU_CHANNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_CHANNELS_INL_H_
#undef SAMBA_CPU_CHANNELS_INL_H_
#else
#define SAMBA_CPU_CHANNELS_INL_H_
#endif

#include "samba/backends/cpu/vectors-inl.h"
#include "samba/numerics/fold.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

// Element k of `channels` rows of kCount floats, in the lanes of vector k; lanes without a channel are +0.
template <int kCount, class D>
struct ChannelRows {
  HWY_ALIGN float at[kCount * hn::MaxLanes(D())] = {};

  HWY_INLINE void load(D d, const float* rows, Index channels) {
    transpose_rows(rows, kCount, channels, kCount, lanes_of(d), at);
  }
  // Flushes what it stores.
  HWY_INLINE void store(D d, float* rows, Index channels) {
    for (Index k = 0; k < kCount; ++k) set(d, k, flush_store(d, hn::Load(d, at + k * lanes_of(d))));
    transpose_rows(at, lanes_of(d), kCount, channels, kCount, rows);
  }
  HWY_INLINE hn::Vec<D> get(D d, Index k) const { return flush_operand(d, hn::Load(d, at + k * lanes_of(d))); }
  HWY_INLINE void set(D d, Index k, hn::Vec<D> v) { hn::Store(v, d, at + k * lanes_of(d)); }
};

// The matrix product's tree over leaves that arrive in ascending order, one tree a lane (numerics/fold.h).
template <class D>
class VectorTree {
 public:
  HWY_INLINE void push(D d, hn::Vec<D> leaf) {
    waiting_[depth_++] = leaf;
    for (Index rest = ++pushed_; (rest & 1) == 0; rest >>= 1) merge(d);
  }
  HWY_INLINE hn::Vec<D> finish(D d) {
    while (depth_ > 1) merge(d);
    return depth_ == 0 ? hn::Zero(d) : waiting_[0];
  }

 private:
  HWY_INLINE void merge(D d) {
    waiting_[depth_ - 2] = flush_operand(d, hn::Add(waiting_[depth_ - 2], waiting_[depth_ - 1]));
    --depth_;
  }
  hn::Vec<D> waiting_[kMaxTreeDepth + 1];
  Index depth_ = 0;
  Index pushed_ = 0;
};

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
