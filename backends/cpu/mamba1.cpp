#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba1.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/channel_units.h"
#include "samba/backends/cpu/channels-inl.h"
#include "samba/backends/cpu/mamba1.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

using Tag = hn::ScalableTag<float>;
using Lanes = SimdLanes<Tag>;
using mamba1::kSegment;
using mamba1::kStates;

void decay_rate_run(Index first, Index end, const float* a_log, float* a) {
  const Lanes l{};
  over_vectors(l.d, first, end, [&](auto io, Index i) HWY_ATTR {
    io.store(l.neg(l.flush(elementary::exp(l, l.flush(io.load(a_log + i))))), a + i);
  });
}

constexpr Index kGroup = 4;  // exponentials side by side

void scan_channels(const Mamba1Call& c, Index b, Index first, Index end) {
  const Lanes l{};
  const Index di = c.channels();
  over_vectors(l.d, first, end, [&](auto io, Index d) HWY_ATTR {
    const Index channels = std::min(lanes_of(l.d), end - d);
    ChannelRows<kStates, Tag> a, h;
    a.load(l.d, c.a + d * kStates, channels);
    if (c.h != nullptr) h.load(l.d, c.h + (b * di + d) * kStates, channels);
    const auto dt_bias = l.flush(io.load(c.dt_bias + d)), skip_weight = l.flush(io.load(c.d + d));
    for (Index step = 0; step < c.tokens; ++step) {
      if (c.kept != nullptr && step % kSegment == 0) {
        h.store(l.d, c.kept + ((b * c.segments() + step / kSegment) * di + d) * kStates, channels);
      }
      const Index t = b * c.tokens + step;
      const Index at = t * di + d;
      const float* B = c.x_proj + t * c.x_width() + c.dt_rank();
      const float* C = B + kStates;
      const auto delta = l.flush(elementary::softplus(l, l.flush(l.add(l.flush(io.load(c.dt_proj + at)), dt_bias))));
      const auto u = io.load(c.u + at);
      auto y = l.set(0.0F);
      for (Index first_n = 0; first_n < kStates; first_n += kGroup) {
        Lanes::F decay[kGroup];
        HWY_UNROLL(8)
        for (Index i = 0; i < kGroup; ++i) decay[i] = l.flush(l.mul(delta, a.get(l.d, first_n + i)));
        elementary::exp_each(l, decay);
        HWY_UNROLL(8)
        for (Index i = 0; i < kGroup; ++i) {
          const Index n = first_n + i;
          const auto input = l.flush(l.mul(l.flush(l.mul(delta, l.set(B[n]))), u));
          const auto state = l.flush(l.fma(decay[i], h.get(l.d, n), input));
          h.set(l.d, n, state);
          y = l.flush(l.fma(l.set(C[n]), state, y));
        }
      }
      const auto skip = l.flush(l.add(y, l.flush(l.mul(u, skip_weight))));
      const auto z = l.flush(io.load(c.in_proj + t * 2 * di + di + d));
      io.store(l.mul(skip, l.flush(elementary::silu(l, z))), c.gate + at);
      if (c.delta != nullptr) io.store(delta, c.delta + at);
      if (c.y != nullptr) io.store(y, c.y + at);
      if (c.skip != nullptr) io.store(skip, c.skip + at);
    }
    if (c.h != nullptr) h.store(l.d, c.h + (b * di + d) * kStates, channels);
  });
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {

HWY_EXPORT(decay_rate_run);
HWY_EXPORT(scan_channels);

constexpr Index kRateGrain = 2048;  // exponentials
constexpr Index kScanGrain = 512;   // channel-tokens, 16 exponentials each

}  // namespace

void Mamba1Cpu::decay_rates(Index n, const float* a_log, float* a) {
  const auto run = SAMBA_CPU_KERNEL(context_, decay_rate_run);
  context_.parallel(n, kRateGrain, [&](Index first, Index end, int) { run(first, end, a_log, a); });
}

void Mamba1Cpu::scan(const Mamba1Call& call) {
  const auto run = SAMBA_CPU_KERNEL(context_, scan_channels);
  over_channel_units(context_, call.batch, call.channels(), call.tokens, kScanGrain,
                     [&](Index b, Index first, Index end) { run(call, b, first, end); });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
