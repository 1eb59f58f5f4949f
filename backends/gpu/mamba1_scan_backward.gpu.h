// The gradient of the Mamba-1 scan (spec 32 sections 3.3 to 3.6).
//
// A block takes one leaf of channels of one batch row, kScanChannels at a time, and goes over the segments from the
// last to the first. One thread a (channel, state) computes the states of a segment again from the one that was kept,
// then its gradients backwards. The sums over the states and over the channels read them in shared memory: one thread a
// (token, channel), and one thread a (token, state) whose chain goes on through the channels of the leaf.
#pragma once

#include "samba/backends/gpu/mamba1_scan.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr int kHalfSegment = static_cast<int>(kSegment) / 2;
inline constexpr int kHalfThreads = kScanThreads / 2;

// What a (channel, state) carries from segment to segment, (batch, di, 16) each; d_a in Mamba1Gradients::d_a_rows.
struct ReverseCarry {
  float *decay, *d_h;  // of the token that comes next
};

// The gradients of the states of one half segment, to shared memory.
struct HalfSegment {
  float *d_h, *d_argument;  // [token of the half, channel, state]
};

// du and ddelta of one token and channel: chains over the states. Threads of the first half take du.
SAMBA_DEVICE void token_gradients(const Mamba1Call& call, const Mamba1Gradients& g, const ScanSegment& segment,
                                  const HalfSegment& half, const float* rates, Index t, Index d, int l, int channel,
                                  bool of_input) {
  const int cell = l * kScanChannels + channel;
  const int row = (l % kHalfSegment * kScanChannels + channel) * kStatePitch;
  const float delta = segment.deltas[cell];
  const float* b = segment.keys + l * kKeyWidth;
  const Index at = t * call.channels() + d;
  float sum = 0.0F;
  if (of_input) {
    for (int n = 0; n < static_cast<int>(kStates); ++n) sum = mad(half.d_h[row + n], mul(delta, b[n]), sum);
    g.d_u_scan[at] = sum;
    return;
  }
  const float u = segment.inputs[cell];
  for (int n = 0; n < static_cast<int>(kStates); ++n) {
    sum = mad(mul(half.d_h[row + n], u), b[n], sum);
    sum = mad(half.d_argument[row + n], rates[channel * kStatePitch + n], sum);
  }
  g.d_delta[at] = sum;
  const float biased = add(call.dt_proj[at], call.dt_bias[d]);
  g.d_dt_proj[at] = biased <= 20.0F ? mul(sum, flush(elementary::sigmoid(biased))) : sum;
}

SAMBA_KERNEL(kScanThreads)
scan_gradients(Mamba1Call call, Mamba1Gradients g, ReverseCarry carry) {
  constexpr int kHalfCells = kHalfSegment * kScanChannels * kStatePitch;
  SAMBA_SHARED(float, states, 2 * kHalfCells);
  SAMBA_SHARED(float, deltas, kTokenCells);
  SAMBA_SHARED(float, inputs, kTokenCells);
  SAMBA_SHARED(float, d_skips, kTokenCells);
  SAMBA_SHARED(float, keys, kTokenCells);
  SAMBA_SHARED(float, rates, kScanChannels* kStatePitch);
  const ScanSegment segment{deltas, inputs, keys};
  const HalfSegment half{states, states + kHalfCells};
  const ScanThread me;
  const Index di = call.channels(), leaf = leaf_length(di), leaves = leaf_count(di);
  const Index b = static_cast<Index>(block_x()) / leaves;
  const Index of_leaf = static_cast<Index>(block_x()) % leaves;
  const Index end_channel = (of_leaf + 1) * leaf < di ? (of_leaf + 1) * leaf : di;
  // The (token, state) of this thread's chain over the channels: threads of the first half dC, the others dB.
  const bool of_query = me.thread < kHalfThreads;
  const int sum_token = me.thread % kHalfThreads / static_cast<int>(kStates);

  for (Index s = call.segments() - 1; s >= 0; --s) {
    const Index rest = call.tokens - s * kSegment;
    const int length = static_cast<int>(rest < kSegment ? rest : kSegment);
    const Index first_token = b * call.tokens + s * kSegment;
    float sum = 0.0F;
    for (Index first = of_leaf * leaf; first < end_channel; first += kScanChannels) {
      const Index left = end_channel - first;
      const int channels = static_cast<int>(left < kScanChannels ? left : kScanChannels);
      const bool has_state = me.of_state < channels;
      const Index state_at = (first + me.of_state) * kStates + me.n, row_at = b * di * kStates + state_at;
      if (me.l < length) {
        const Index t = first_token + me.l, at = t * di + first + me.of_token;
        keys[me.thread] = call.x_proj[t * call.x_width() + call.dt_rank() + me.of_token];
        if (me.of_token < channels) {
          deltas[me.thread] = call.delta[at];
          inputs[me.thread] = call.u[at];
          d_skips[me.thread] = g.d_skip[at];
        }
      }
      const float a = has_state ? call.a[state_at] : 0.0F;
      if (has_state) rates[me.of_state * kStatePitch + me.n] = a;
      barrier();

      float before[kSegment], decays[kSegment];
      float h = has_state ? call.kept[(b * call.segments() + s) * di * kStates + state_at] : 0.0F;
      SAMBA_UNROLL
      for (int l = 0; l < static_cast<int>(kSegment); ++l) {
        before[l] = h;
        decays[l] = 0.0F;
        if (!has_state || l >= length) continue;
        decays[l] = state_decay(deltas[l * kScanChannels + me.of_state], a);
        h = next_state(segment, me, l, decays[l], h);
        states[me.state_cell(l)] = h;
      }
      barrier();
      if (of_query && sum_token < length) {
        for (int k = 0; k < channels; ++k) {
          const int cell = sum_token * kScanChannels + k;
          sum = mad(d_skips[cell], states[cell * kStatePitch + me.n], sum);
        }
      }
      barrier();

      const bool begins = s + 1 == call.segments();
      float next_decay = has_state && !begins ? carry.decay[row_at] : 0.0F;
      float next_d_h = has_state && !begins ? carry.d_h[row_at] : 0.0F;
      float d_a = has_state && !begins ? g.d_a_rows[row_at] : 0.0F;
      SAMBA_UNROLL
      for (int part = 1; part >= 0; --part) {
        if (part * kHalfSegment >= length) continue;
        SAMBA_UNROLL
        for (int i = kHalfSegment - 1; i >= 0; --i) {
          const int l = part * kHalfSegment + i;
          if (!has_state || l >= length) continue;
          const int cell = l * kScanChannels + me.of_state;
          const float contribution = mul(d_skips[cell], keys[l * kKeyWidth + static_cast<int>(kStates) + me.n]);
          const bool ends = begins && l + 1 == length;
          const float d_h = ends ? contribution : mad(next_decay, next_d_h, contribution);
          const float d_argument = mul(mul(d_h, before[l]), decays[l]);
          d_a = mad(d_argument, deltas[cell], d_a);
          next_decay = decays[l];
          next_d_h = d_h;
          half.d_h[me.state_cell(i)] = d_h;
          half.d_argument[me.state_cell(i)] = d_argument;
          if (g.d_h != nullptr) g.d_h[(first_token + l) * di * kStates + state_at] = d_h;
        }
        barrier();
        const int l = part * kHalfSegment + me.l % kHalfSegment;
        if (l < length && me.of_token < channels) {
          token_gradients(call, g, segment, half, rates, first_token + l, first + me.of_token, l, me.of_token,
                          of_query);
        }
        if (!of_query && sum_token / kHalfSegment == part && sum_token < length) {
          for (int k = 0; k < channels; ++k) {
            const int cell = sum_token * kScanChannels + k;
            const int row = sum_token % kHalfSegment * kScanChannels + k;
            sum = mad(mul(deltas[cell], inputs[cell]), half.d_h[row * kStatePitch + me.n], sum);
          }
        }
        barrier();
      }
      if (has_state) {
        carry.decay[row_at] = next_decay;
        carry.d_h[row_at] = next_d_h;
        g.d_a_rows[row_at] = d_a;
      }
    }
    if (sum_token < length) {
      const Index row = of_leaf * call.rows() + first_token + sum_token;
      g.leaf_sums[row * kKeyWidth + (of_query ? kStates : 0) + me.n] = sum;
    }
  }
}

// dB and dC of every token from their leaves.                                       section 3.5
struct FoldChannels {
  Mamba1Call call;
  Mamba1Gradients g;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index cells = call.rows() * kKeyWidth;
    TreeFold tree;
    for (Index t = 0; t < leaf_count(call.channels()); ++t) tree.push(g.leaf_sums[t * cells + i]);
    g.d_x_proj[i / kKeyWidth * call.x_width() + call.dt_rank() + i % kKeyWidth] = tree.finish();
  }
};

struct RateGradient {
  Mamba1Call call;
  Mamba1Gradients g;
  SAMBA_DEVICE void operator()(Index i) const {
    float sum = 0.0F;
    for (Index b = 0; b < call.batch; ++b) sum = add(sum, g.d_a_rows[b * call.channels() * kStates + i]);
    g.d_a_log[i] = mul(sum, call.a[i]);
  }
};

void launch_scan_backward(Context& context, const Mamba1Call& call, const Mamba1Gradients& g) {
  const Workspace::Scope scope(context.workspace());
  const Index cells = call.batch * call.channels() * kStates;
  float* decay = context.workspace().floats(cells);
  const ReverseCarry carry{decay, context.workspace().floats(cells)};
  launch(context, Grid{static_cast<unsigned>(call.batch * leaf_count(call.channels()))}, kScanThreads, scan_gradients,
         call, g, carry);
  for_each(context, call.rows() * kKeyWidth, FoldChannels{call, g});
  for_each(context, call.channels() * kStates, RateGradient{call, g});
}

}  // namespace

}  // namespace samba::SAMBA_GPU
