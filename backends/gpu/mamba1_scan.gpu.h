// The selective scan of Mamba-1 (spec 30 S11 to S14).
//
// A block takes kScanChannels channels of one batch row and goes over the tokens a segment at a time. One thread a
// (channel, state) carries its state through the segment, in shared memory the states of all its tokens; then one
// thread a (token, channel) has the chain over the states and what follows.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/kernels/mamba1.h"

namespace samba::SAMBA_GPU {

namespace {

using mamba1::kSegment;
using mamba1::kStates;

inline constexpr int kScanChannels = 32;
inline constexpr int kScanThreads = kScanChannels * static_cast<int>(kStates);
inline constexpr int kStatePitch = static_cast<int>(kStates) + 1;
inline constexpr int kTokenCells = static_cast<int>(kSegment) * kScanChannels;  // (token, channel) of a segment
inline constexpr int kKeyWidth = 2 * static_cast<int>(kStates);                 // B | C
static_assert(kScanThreads == kTokenCells && kKeyWidth == kScanChannels,
              "threads are (token, channel) and (token, key)");

// The two places of a thread: the state n of channel `of_state`, and the channel `of_token` of token l of the segment.
struct ScanThread {
  int thread = static_cast<int>(thread_index());
  int of_state = thread / static_cast<int>(kStates), n = thread % static_cast<int>(kStates);
  int l = thread / kScanChannels, of_token = thread % kScanChannels;
  SAMBA_DEVICE int state_cell(int token) const { return (token * kScanChannels + of_state) * kStatePitch + n; }
};

// Cells of shared memory that a step of the scan reads.
struct ScanSegment {
  float* deltas;  // [token, channel]
  float* inputs;  // u
  float* keys;    // [token, B | C]
};

// h after token l of the segment, from h before it.
SAMBA_DEVICE float next_state(const ScanSegment& segment, const ScanThread& me, int l, float decay, float h) {
  const float delta = segment.deltas[l * kScanChannels + me.of_state];
  const float update =
      mul(mul(delta, segment.keys[l * kKeyWidth + me.n]), segment.inputs[l * kScanChannels + me.of_state]);
  return mad(decay, h, update);
}

SAMBA_DEVICE float state_decay(float delta, float a) { return flush(elementary::exp(mul(delta, a))); }

SAMBA_KERNEL(kScanThreads)
scan_channels(Mamba1Call call) {
  SAMBA_SHARED(float, states, kTokenCells* kStatePitch);
  SAMBA_SHARED(float, deltas, kTokenCells);
  SAMBA_SHARED(float, inputs, kTokenCells);
  SAMBA_SHARED(float, keys, kTokenCells);
  const ScanSegment segment{deltas, inputs, keys};
  const ScanThread me;
  const Index di = call.channels();
  const Index groups = (di + kScanChannels - 1) / kScanChannels;
  const Index b = static_cast<Index>(block_x()) / groups;
  const Index first_channel = static_cast<Index>(block_x()) % groups * kScanChannels;
  const Index state_channel = first_channel + me.of_state, d = first_channel + me.of_token;
  const bool has_state = state_channel < di;
  const Index state_at = state_channel * kStates + me.n;
  const float a = has_state ? call.a[state_at] : 0.0F;
  float h = has_state && call.h != nullptr ? flush(call.h[b * di * kStates + state_at]) : 0.0F;

  for (Index s = 0; s < call.segments(); ++s) {
    const Index rest = call.tokens - s * kSegment;
    const int length = static_cast<int>(rest < kSegment ? rest : kSegment);
    const Index t = b * call.tokens + s * kSegment + me.l;
    const bool has_token = me.l < length && d < di;
    if (me.l < length) keys[me.thread] = call.x_proj[t * call.x_width() + call.dt_rank() + me.of_token];
    if (has_token) {
      const float delta = flush(elementary::softplus(add(call.dt_proj[t * di + d], call.dt_bias[d])));
      deltas[me.thread] = delta;
      inputs[me.thread] = call.u[t * di + d];
      if (call.delta != nullptr) call.delta[t * di + d] = delta;
    }
    barrier();
    if (has_state) {
      if (call.kept != nullptr) call.kept[(b * call.segments() + s) * di * kStates + state_at] = h;
      for (int l = 0; l < length; ++l) {
        h = next_state(segment, me, l, state_decay(deltas[l * kScanChannels + me.of_state], a), h);
        states[me.state_cell(l)] = h;
      }
    }
    barrier();
    if (has_token) {
      float y = 0.0F;
      for (int n = 0; n < static_cast<int>(kStates); ++n) {
        y = mad(keys[me.l * kKeyWidth + static_cast<int>(kStates) + n], states[me.thread * kStatePitch + n], y);
      }
      const float skip = add(y, mul(inputs[me.thread], call.d[d]));
      const Index at = t * di + d;
      call.gate[at] = mul(skip, flush(elementary::silu(flush(call.in_proj[t * 2 * di + di + d]))));
      if (call.y != nullptr) call.y[at] = y;
      if (call.skip != nullptr) call.skip[at] = skip;
    }
    barrier();
  }
  if (has_state && call.h != nullptr) call.h[b * di * kStates + state_at] = h;
}

void launch_scan(Context& context, const Mamba1Call& call) {
  const Index groups = (call.channels() + kScanChannels - 1) / kScanChannels;
  launch(context, Grid{static_cast<unsigned>(call.batch * groups)}, kScanThreads, scan_channels, call);
}

}  // namespace

}  // namespace samba::SAMBA_GPU
