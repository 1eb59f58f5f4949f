// Mamba-3, backward of what happens token by token: gate, rotation, trapezoid, angles, B and C norms (spec 41 sections
// 3.2, 3.3 and 3.9 to 3.15).
#include "samba/backends/reference/clones.h"
#include "samba/backends/reference/mamba3.h"
#include "samba/backends/reference/mamba3_arithmetic.h"

namespace samba::reference {

namespace {

const float* projected_row(const Mamba3Call& call, Index m) {
  return call.in_proj + m * mamba3::projection_width(call.d_model);
}

SAMBA_FMA_CLONES void gate_row(const Mamba3Call& call, const Mamba3Gradients& gradients, Index m, Index h) {
  const Index at = m * call.heads() + h;
  const mamba3::Columns columns = mamba3::columns(call.d_model);
  const float* z = projected_row(call, m) + columns.z + h * kHeadDim;
  const float* v = projected_row(call, m) + columns.x + h * kHeadDim;
  const float* d_gate = gradients.d_gate + at * kHeadDim;
  const float* skip = call.skip + at * kHeadDim;
  float* d_z = gradients.d_in_proj + m * mamba3::projection_width(call.d_model) + columns.z + h * kHeadDim;
  const float weight = add(call.d[h], mul(call.qk_chain[at], call.gamma[at]));
  float d_qkdot = 0.0F;
  for (Index p = 0; p < kHeadDim; ++p) {
    const float dy = mul(d_gate[p], flush(elementary::silu(flush(z[p]))));
    const float sigmoid = sigmoid_flushed(z[p]);
    const float middle = mad(z[p], sub(1.0F, sigmoid), 1.0F);
    d_z[p] = mul(mul(d_gate[p], skip[p]), mul(sigmoid, middle));
    gradients.d_skip[at * kHeadDim + p] = dy;
    gradients.d_v_skip[at * kHeadDim + p] = mul(dy, weight);
    d_qkdot = mad(dy, v[p], d_qkdot);
  }
  gradients.d_qkdot[at] = d_qkdot;
}

// The gradients of a pair before its rotation; (x0, x1) is the un-rotated pair, (g0, g1) the gradient of the rotated
// one. Adds the pair's two steps to the chain of d_theta.
float unturn_pair(const float* g, const float* x, float c, float s, float d_theta, float* out) {
  out[0] = add(mul(g[0], c), mul(g[1], s));
  out[1] = sub(mul(g[1], c), mul(g[0], s));
  d_theta = mad(g[0], sub(-mul(x[0], s), mul(x[1], c)), d_theta);
  return mad(g[1], sub(mul(x[0], c), mul(x[1], s)), d_theta);
}

SAMBA_FMA_CLONES void rotate_row(const Mamba3Call& call, const Mamba3Gradients& gradients, Index m, Index h) {
  const Index at = m * call.heads() + h;
  const float d_qkdot = gradients.d_qkdot[at];
  const float common = mul(d_qkdot, call.gamma[at]);
  const float* d_q = gradients.d_q + at * kStateSize;
  const float* d_k = gradients.d_k + at * kStateSize;
  const float* k_rotated = call.current.k + at * kStateSize;
  float* d_krot = gradients.d_krot + at * kStateSize;
  float* d_qraw = gradients.d_qraw + at * kStateSize;
  float* d_kraw = gradients.d_kraw + at * kStateSize;

  float q[kStateSize];
  float k[kStateSize];
  float d_scale = 0.0F;
  for (Index n = 0; n < kStateSize; ++n) {
    q[n] = add(call.c_normed[m * kStateSize + n], call.c_bias[h * kStateSize + n]);
    k[n] = add(call.b_normed[m * kStateSize + n], call.b_bias[h * kStateSize + n]);
    d_krot[n] = mul(d_k[n], call.scale[at]);
    d_scale = mad(d_k[n], k_rotated[n], d_scale);
  }
  gradients.d_scale[at] = d_scale;

  for (Index j = 0; j < kAngles; ++j) {
    const float angle = call.angles[at * kAngles + j];
    const float c = flush(elementary::cos(angle));
    const float s = flush(elementary::sin(angle));
    const Index pair = 2 * j;
    const float from_q = unturn_pair(d_q + pair, q + pair, c, s, 0.0F, d_qraw + pair);
    gradients.d_theta[at * kAngles + j] = unturn_pair(d_krot + pair, k + pair, c, s, from_q, d_kraw + pair);
  }
  std::copy(d_q + 2 * kAngles, d_q + kStateSize, d_qraw + 2 * kAngles);
  std::copy(d_krot + 2 * kAngles, d_krot + kStateSize, d_kraw + 2 * kAngles);

  for (Index n = 0; n < kStateSize; ++n) {
    gradients.d_b[at * kStateSize + n] = add(mul(common, q[n]), d_kraw[n]);
    gradients.d_c[at * kStateSize + n] = add(mul(common, k[n]), d_qraw[n]);
  }
}

// dt and the trapezoid: the qk diagonal's legs, then the key scale of this token and of the one before.
void trapezoid_row(const Mamba3Call& call, const Mamba3Gradients& gradients, Index m, Index h) {
  const Index heads = call.heads();
  const Index at = m * heads + h;
  const float dt = call.current.dt[at];
  const float sigma = call.current.sigma[at];
  const float rest = sub(1.0F, sigma);
  const float d_gamma = mul(gradients.d_qkdot[at], call.qk_chain[at]);
  const float d_dt_qk = mul(d_gamma, sigma);
  const float d_trap_qk = mul(mul(mul(d_gamma, dt), sigma), rest);
  const float g = gradients.d_scale[at];
  float d_dt = add(d_dt_qk, mul(g, sigma));
  float d_trap = add(d_trap_qk, mul(mul(mul(g, dt), sigma), rest));
  if (m % call.tokens > 0) {
    const float before = gradients.d_scale[at - heads];
    d_dt = add(d_dt, mul(before, rest));
    d_trap = add(d_trap, mul(mul(-mul(before, dt), sigma), rest));
  }
  gradients.d_dt_qk[at] = d_dt_qk;
  gradients.d_trap_qk[at] = d_trap_qk;
  gradients.d_dt_cur[at] = d_dt;
  gradients.d_trap[at] = d_trap;
}

// Suffix sums of d_theta over the sequence, in blocks of 64 tokens at absolute positions: a block starts from the sum
// of the totals of the blocks behind it, last block first.
void suffix_sums(const Mamba3Call& call, const Mamba3Gradients& gradients, Index b, Index h) {
  const Index heads = call.heads();
  const auto position = [&](Index t, Index r) { return ((b * call.tokens + t) * heads + h) * kAngles + r; };
  for (Index r = 0; r < kAngles; ++r) {
    float behind = 0.0F;
    for (Index c = call.chunks() - 1; c >= 0; --c) {
      const ChunkRange range = chunk_range(call, c);
      float run = behind;
      float total = 0.0F;
      for (Index t = range.first + range.real - 1; t >= range.first; --t) {
        const float d_theta = gradients.d_theta[position(t, r)];
        run = add(run, d_theta);
        total = add(total, d_theta);
        gradients.d_theta_suffix[position(t, r)] = run;
      }
      behind = add(behind, total);
    }
  }
}

// The slope of A = -ht(a) by its raw argument; 0 where the floor binds.
float decay_rate_gradient(float raw, float d_a) {
  const float a = flush(raw);
  const float tangent = a >= 0.0F ? add(1.0F, a) : div(1.0F, sub(1.0F, a));
  if (-tangent > -kAFloor) return 0.0F;
  return -mul(d_a, a >= 0.0F ? 1.0F : mul(tangent, tangent));
}

SAMBA_FMA_CLONES void token_scalars(const Mamba3Call& call, const Mamba3Gradients& gradients, Index m) {
  const Index heads = call.heads();
  const mamba3::Columns columns = mamba3::columns(call.d_model);
  const float* row = projected_row(call, m);
  float* d_row = gradients.d_in_proj + m * mamba3::projection_width(call.d_model);
  for (Index h = 0; h < heads; ++h) {
    const Index at = m * heads + h;
    float d_dt_angle = 0.0F;
    for (Index r = 0; r < kAngles; ++r) {
      d_dt_angle = mad(gradients.d_theta_suffix[at * kAngles + r], call.angle_rate[m * kAngles + r], d_dt_angle);
    }
    gradients.d_dt_angle[at] = d_dt_angle;

    const float d_dt_a = mul(gradients.d_adt[at], call.a[at]);
    const float d_dt = add(add(gradients.d_dt_cur[at], d_dt_a), d_dt_angle);
    const float before_softplus = add(row[columns.dt + h], call.dt_bias[h]);
    const float slope = before_softplus <= 20.0F ? sigmoid_flushed(before_softplus) : 1.0F;
    gradients.d_dd_dt[at] = mul(d_dt, slope);
    gradients.d_dd_a[at] = decay_rate_gradient(row[columns.a + h], mul(gradients.d_adt[at], call.current.dt[at]));

    d_row[columns.dt + h] = gradients.d_dd_dt[at];
    d_row[columns.a + h] = gradients.d_dd_a[at];
    d_row[columns.trap + h] = gradients.d_trap[at];
    std::copy_n(gradients.d_v + at * kHeadDim, kHeadDim, d_row + columns.x + h * kHeadDim);
  }
}

SAMBA_FMA_CLONES void angle_gradient(const Mamba3Call& call, const Mamba3Gradients& gradients, Index m) {
  const Index heads = call.heads();
  const Index first = mamba3::columns(call.d_model).angle;
  const float* row = projected_row(call, m) + first;
  float* d_row = gradients.d_in_proj + m * mamba3::projection_width(call.d_model) + first;
  for (Index r = 0; r < kAngles; ++r) {
    float sum = 0.0F;
    for (Index h = 0; h < heads; ++h) {
      const Index at = m * heads + h;
      sum = add(sum, mul(gradients.d_theta_suffix[at * kAngles + r], call.current.dt[at]));
    }
    const float tangent = elementary::tanh(row[r]);
    d_row[r] = mul(sum, mul(kPi, sub(1.0F, mul(tangent, tangent))));
  }
}

// Backward of the B or C norm of one token. d_heads: [H, 128], the gradients of its result by head.
SAMBA_FMA_CLONES void state_norm_gradient(Index heads, const float* x, const float* weight, const float* d_heads,
                                          float* weight_row, float* dx) {
  const float rstd = norm_rstd(serial_sumsq(x), static_cast<float>(kStateSize));
  float scaled[kStateSize];
  float dot = 0.0F;
  for (Index n = 0; n < kStateSize; ++n) {
    float sum = 0.0F;
    for (Index h = 0; h < heads; ++h) sum = add(sum, d_heads[h * kStateSize + n]);
    scaled[n] = mul(sum, weight[n]);
    weight_row[n] = mul(sum, mul(x[n], rstd));
    dot = mad(scaled[n], x[n], dot);
  }
  const float correction = mul(mul(rstd, rstd), div(dot, static_cast<float>(kStateSize)));
  for (Index n = 0; n < kStateSize; ++n) dx[n] = mul(rstd, sub(scaled[n], mul(x[n], correction)));
}

}  // namespace

void Mamba3Reference::gate_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) {
  for (Index m = 0; m < call.new_rows(); ++m) {
    for (Index h = 0; h < call.heads(); ++h) gate_row(call, gradients, m, h);
  }
}

void Mamba3Reference::rotate_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) {
  for (Index m = 0; m < call.new_rows(); ++m) {
    for (Index h = 0; h < call.heads(); ++h) {
      rotate_row(call, gradients, m, h);
      trapezoid_row(call, gradients, m, h);
    }
  }
}

void Mamba3Reference::tokens_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) {
  const Index heads = call.heads();
  const Index width = mamba3::projection_width(call.d_model);
  const mamba3::Columns columns = mamba3::columns(call.d_model);
  for (Index b = 0; b < call.batch; ++b) {
    for (Index h = 0; h < heads; ++h) suffix_sums(call, gradients, b, h);
  }
  for (Index m = 0; m < call.new_rows(); ++m) {
    token_scalars(call, gradients, m);
    angle_gradient(call, gradients, m);
    const float* row = projected_row(call, m);
    float* d_row = gradients.d_in_proj + m * width;
    state_norm_gradient(heads, row + columns.b, call.b_norm_weight, gradients.d_b + m * heads * kStateSize,
                        gradients.b_weight_rows + m * kStateSize, d_row + columns.b);
    state_norm_gradient(heads, row + columns.c, call.c_norm_weight, gradients.d_c + m * heads * kStateSize,
                        gradients.c_weight_rows + m * kStateSize, d_row + columns.c);
  }
}

}  // namespace samba::reference
