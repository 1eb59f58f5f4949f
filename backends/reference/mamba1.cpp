#include "samba/backends/reference/mamba1.h"

#include <algorithm>

#include "samba/backends/reference/clones.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/float32.h"

namespace samba::reference {

namespace {

using mamba1::kSegment;
using mamba1::kStates;

// One channel of one batch row over all tokens (spec 30 S11 to S14).
SAMBA_FMA_CLONES void scan_channel(const Mamba1Call& call, Index b, Index d) {
  const Index di = call.channels();
  float* stored = call.h == nullptr ? nullptr : call.h + (b * di + d) * kStates;
  float h[kStates] = {};
  if (stored != nullptr) {
    for (Index n = 0; n < kStates; ++n) h[n] = flush(stored[n]);
  }
  for (Index l = 0; l < call.tokens; ++l) {
    if (call.kept != nullptr && l % kSegment == 0) {
      std::copy_n(h, kStates, call.kept + ((b * call.segments() + l / kSegment) * di + d) * kStates);
    }
    const Index t = b * call.tokens + l;
    const Index at = t * di + d;
    const float* B = call.x_proj + t * call.x_width() + call.dt_rank();
    const float* C = B + kStates;
    const float delta = flush(elementary::softplus(add(call.dt_proj[at], call.dt_bias[d])));
    const float u = call.u[at];
    for (Index n = 0; n < kStates; ++n) {
      const float decay = flush(elementary::exp(mul(delta, call.a[d * kStates + n])));
      h[n] = mad(decay, h[n], mul(mul(delta, B[n]), u));
    }
    float y = 0.0F;
    for (Index n = 0; n < kStates; ++n) y = mad(C[n], h[n], y);
    const float skip = add(y, mul(u, call.d[d]));
    call.gate[at] = mul(skip, flush(elementary::silu(flush(call.in_proj[t * 2 * di + di + d]))));
    if (call.delta != nullptr) call.delta[at] = delta;
    if (call.y != nullptr) call.y[at] = y;
    if (call.skip != nullptr) call.skip[at] = skip;
  }
  if (stored != nullptr) std::copy_n(h, kStates, stored);
}

}  // namespace

void Mamba1Reference::decay_rates(Index n, const float* a_log, float* a) {
  for (Index i = 0; i < n; ++i) a[i] = -flush(elementary::exp(flush(a_log[i])));
}

void Mamba1Reference::scan(const Mamba1Call& call) {
  for (Index b = 0; b < call.batch; ++b) {
    for (Index d = 0; d < call.channels(); ++d) scan_channel(call, b, d);
  }
}

}  // namespace samba::reference
