// Gradients of the Mamba-1 scan, gate and convolution (spec 32 sections 3.2 to 3.6, 3.9, 3.10).
#include <algorithm>
#include <vector>

#include "samba/backends/reference/clones.h"
#include "samba/backends/reference/mamba1.h"
#include "samba/kernels/conv.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/float32.h"
#include "samba/numerics/fold.h"

namespace samba::reference {

namespace {

using mamba1::kStates;

// silu' in the rounding of Mamba-1: s (1 + v (1 - s))                              spec 32 section 2
inline float silu_slope(float v) {
  const float s = flush(elementary::sigmoid(flush(v)));
  return mul(s, add(1.0F, mul(v, sub(1.0F, s))));
}

SAMBA_FMA_CLONES void gate_row(const Mamba1Call& call, const Mamba1Gradients& g, Index t) {
  const Index di = call.channels();
  for (Index d = 0; d < di; ++d) {
    const Index at = t * di + d;
    const float z = flush(call.in_proj[t * 2 * di + di + d]);
    const float d_skip = mul(g.d_gate[at], flush(elementary::silu(z)));
    g.d_skip[at] = d_skip;
    g.d_in_proj[t * 2 * di + di + d] = mul(mul(g.d_gate[at], call.skip[at]), silu_slope(z));
    g.d_u_skip[at] = mul(d_skip, call.d[d]);
    g.d_rows[at] = mul(d_skip, call.u[at]);
  }
}

// All decays, states and state gradients of one batch row: [tokens, di, 16].
struct RowStates {
  std::vector<float> decay, h, d_h;
  explicit RowStates(Index count)
      : decay(static_cast<std::size_t>(count)),
        h(static_cast<std::size_t>(count)),
        d_h(static_cast<std::size_t>(count)) {}
};

SAMBA_FMA_CLONES void states_of_channel(const Mamba1Call& call, Index b, Index d, float* decays, float* states) {
  const Index di = call.channels();
  float h[kStates] = {};
  for (Index l = 0; l < call.tokens; ++l) {
    const Index t = b * call.tokens + l;
    const float* B = call.x_proj + t * call.x_width() + call.dt_rank();
    const float delta = call.delta[t * di + d];
    for (Index n = 0; n < kStates; ++n) {
      const Index at = (l * di + d) * kStates + n;
      decays[at] = flush(elementary::exp(mul(delta, call.a[d * kStates + n])));
      h[n] = mad(decays[at], h[n], mul(mul(delta, B[n]), call.u[t * di + d]));
      states[at] = h[n];
    }
  }
}

SAMBA_FMA_CLONES void reverse_channel(const Mamba1Call& call, const Mamba1Gradients& g, Index b, Index d,
                                      const float* decays, const float* states, float* d_states) {
  const Index di = call.channels();
  float d_a[kStates] = {};
  for (Index l = call.tokens - 1; l >= 0; --l) {
    const Index t = b * call.tokens + l;
    const Index at = t * di + d;
    const float* B = call.x_proj + t * call.x_width() + call.dt_rank();
    const float* C = B + kStates;
    const float* a = call.a + d * kStates;
    const float delta = call.delta[at];
    float d_u = 0.0F;
    float d_delta = 0.0F;
    for (Index n = 0; n < kStates; ++n) {
      const Index here = (l * di + d) * kStates + n;
      const Index next = here + di * kStates;
      const float contribution = mul(g.d_skip[at], C[n]);
      const float d_h = l + 1 == call.tokens ? contribution : mad(decays[next], d_states[next], contribution);
      d_states[here] = d_h;
      d_u = mad(d_h, mul(delta, B[n]), d_u);
      const float before = l == 0 ? 0.0F : states[here - di * kStates];
      const float d_argument = mul(mul(d_h, before), decays[here]);
      d_delta = mad(mul(d_h, call.u[at]), B[n], d_delta);
      d_delta = mad(d_argument, a[n], d_delta);
      d_a[n] = mad(d_argument, delta, d_a[n]);
    }
    g.d_u_scan[at] = d_u;
    g.d_delta[at] = d_delta;
    const float biased = add(call.dt_proj[at], call.dt_bias[d]);
    g.d_dt_proj[at] = biased <= 20.0F ? mul(d_delta, flush(elementary::sigmoid(biased))) : d_delta;
  }
  for (Index n = 0; n < kStates; ++n) g.d_a_rows[(b * di + d) * kStates + n] = d_a[n];
}

// dB and dC of one token                                                          spec 32 section 3.5
SAMBA_FMA_CLONES void channel_sums(const Mamba1Call& call, const Mamba1Gradients& g, Index t, const float* states,
                                   const float* d_states) {
  const Index di = call.channels();
  float* out = g.d_x_proj + t * call.x_width() + call.dt_rank();
  for (Index n = 0; n < kStates; ++n) {
    out[n] = dot(
        di, [&](Index d) { return mul(call.delta[t * di + d], call.u[t * di + d]); },
        [&](Index d) { return d_states[d * kStates + n]; });
    out[kStates + n] = dot(
        di, [&](Index d) { return g.d_skip[t * di + d]; }, [&](Index d) { return states[d * kStates + n]; });
  }
}

SAMBA_FMA_CLONES void join_row(const Mamba1Call& call, const Mamba1Gradients& g, Index t) {
  const Index di = call.channels();
  for (Index at = t * di; at < (t + 1) * di; ++at) {
    g.d_u[at] = add(add(g.d_u_skip[at], g.d_u_scan[at]), g.d_u_x[at]);
    g.d_conv[at] = mul(g.d_u[at], silu_slope(g.conv[at]));
  }
}

SAMBA_FMA_CLONES void conv_input_row(const Mamba1Call& call, const Mamba1Gradients& g, Index b, Index p) {
  const Index di = call.channels();
  for (Index d = 0; d < di; ++d) {
    float sum = 0.0F;
    for (Index k = 0; k < kConvTaps; ++k) {
      const Index q = p + 3 - k;
      if (q < call.tokens) {
        sum = mad(g.conv_weight[d * kConvTaps + k], g.d_conv[(b * call.tokens + q) * di + d], sum);
      }
    }
    g.d_in_proj[(b * call.tokens + p) * 2 * di + d] = sum;
  }
}

SAMBA_FMA_CLONES void conv_weight_channel(const Mamba1Call& call, const Mamba1Gradients& g, Index d) {
  const Index di = call.channels();
  const auto one = [](Index) { return 1.0F; };
  for (Index k = 0; k < kConvTaps; ++k) {
    const auto term = [&](Index t) {
      const Index l = t % call.tokens;
      const float v = l - 3 + k >= 0 ? call.in_proj[(t - 3 + k) * 2 * di + d] : 0.0F;
      return mul(g.d_conv[t * di + d], v);
    };
    g.d_conv_weight[d * kConvTaps + k] = dot(call.rows(), term, one);
  }
  g.d_conv_bias[d] = dot(
      call.rows(), [&](Index t) { return g.d_conv[t * di + d]; }, one);
}

}  // namespace

void Mamba1Reference::gate_backward(const Mamba1Call& call, const Mamba1Gradients& g) {
  for (Index t = 0; t < call.rows(); ++t) gate_row(call, g, t);
}

void Mamba1Reference::scan_backward(const Mamba1Call& call, const Mamba1Gradients& g) {
  const Index token = call.channels() * kStates;
  RowStates row(call.tokens * token);
  for (Index b = 0; b < call.batch; ++b) {
    for (Index d = 0; d < call.channels(); ++d) {
      states_of_channel(call, b, d, row.decay.data(), row.h.data());
      reverse_channel(call, g, b, d, row.decay.data(), row.h.data(), row.d_h.data());
    }
    for (Index l = 0; l < call.tokens; ++l) {
      channel_sums(call, g, b * call.tokens + l, row.h.data() + l * token, row.d_h.data() + l * token);
    }
    if (g.d_h != nullptr) std::copy(row.d_h.begin(), row.d_h.end(), g.d_h + b * call.tokens * token);
  }
  for (Index i = 0; i < token; ++i) {
    float sum = 0.0F;
    for (Index b = 0; b < call.batch; ++b) sum = add(sum, g.d_a_rows[b * token + i]);
    g.d_a_log[i] = mul(sum, call.a[i]);
  }
}

void Mamba1Reference::conv_backward(const Mamba1Call& call, const Mamba1Gradients& g) {
  for (Index t = 0; t < call.rows(); ++t) join_row(call, g, t);
  for (Index b = 0; b < call.batch; ++b) {
    for (Index p = 0; p < call.tokens; ++p) conv_input_row(call, g, b, p);
  }
  for (Index d = 0; d < call.channels(); ++d) conv_weight_channel(call, g, d);
}

}  // namespace samba::reference
