#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/conv.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/channel_units.h"
#include "samba/backends/cpu/channels-inl.h"
#include "samba/backends/cpu/conv.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

using Tag = hn::ScalableTag<float>;
using Lanes = SimdLanes<Tag>;

void conv_channels(const ConvCall& c, Index b, Index first, Index end, float* conv, float* activated) {
  const Lanes l{};
  over_vectors(l.d, first, end, [&](auto io, Index d) HWY_ATTR {
    const Index channels = std::min(lanes_of(l.d), end - d);
    ChannelRows<4, Tag> taps, past;
    taps.load(l.d, c.weight + d * kConvTaps, channels);
    if (c.window != nullptr) past.load(l.d, c.window + (b * c.channels + d) * kConvTaps, channels);
    const auto w0 = taps.get(l.d, 0), w1 = taps.get(l.d, 1), w2 = taps.get(l.d, 2), w3 = taps.get(l.d, 3);
    auto v0 = past.get(l.d, 1), v1 = past.get(l.d, 2), v2 = past.get(l.d, 3);
    const auto bias = l.flush(io.load(c.bias + d));
    for (Index t = b * c.tokens; t < (b + 1) * c.tokens; ++t) {
      const auto v3 = l.flush(io.load(c.x + t * c.x_stride + d));
      auto sum = l.flush(l.fma(w0, v0, bias));
      sum = l.flush(l.fma(w1, v1, sum));
      sum = l.flush(l.fma(w2, v2, sum));
      sum = l.flush(l.fma(w3, v3, sum));
      if (conv != nullptr) io.store(sum, conv + t * c.channels + d);
      io.store(elementary::silu(l, sum), activated + t * c.channels + d);
      v0 = v1;
      v1 = v2;
      v2 = v3;
    }
  });
}

// For tokens >= 4: the last four rows of x, transposed.
void window_channels(const ConvCall& c, Index b, Index first, Index end, float* window) {
  const float* rows = c.x + ((b + 1) * c.tokens - kConvTaps) * c.x_stride;
  transpose_rows(rows + first, c.x_stride, kConvTaps, end - first, kConvTaps,
                 window + (b * c.channels + first) * kConvTaps);
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {

HWY_EXPORT(conv_channels);
HWY_EXPORT(window_channels);

constexpr Index kGrain = 4096;         // channel-tokens
constexpr Index kWindowGrain = 16384;  // channels

// The window moves on by fewer slots than it has.
void shift_window(const ConvCall& call, Index b, Index first, Index end, float* window) {
  const Index stay = kConvTaps - call.tokens;
  for (Index d = first; d < end; ++d) {
    float* slots = window + (b * call.channels + d) * kConvTaps;
    for (Index j = 0; j < stay; ++j) slots[j] = slots[j + call.tokens];
    for (Index l = 0; l < call.tokens; ++l) slots[stay + l] = call.x[(b * call.tokens + l) * call.x_stride + d];
  }
}

}  // namespace

void ConvCpu::conv_forward(const ConvCall& call, float* conv, float* activated) {
  const auto run = SAMBA_CPU_KERNEL(context_, conv_channels);
  over_channel_units(context_, call.batch, call.channels, call.tokens, kGrain,
                     [&](Index b, Index first, Index end) { run(call, b, first, end, conv, activated); });
}

void ConvCpu::update_window(const ConvCall& call, float* window) {
  const auto copy = SAMBA_CPU_KERNEL(context_, window_channels);
  const auto move = call.tokens < kConvTaps ? shift_window : copy;
  over_channel_units(context_, call.batch, call.channels, 1, kWindowGrain,
                     [&](Index b, Index first, Index end) { move(call, b, first, end, window); });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
