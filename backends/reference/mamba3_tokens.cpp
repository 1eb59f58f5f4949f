// Mamba-3, what happens token by token: scalars, B and C norms, angles, rotation, trapezoid weights (spec 40 sections
// 3.3 to 3.8).
#include <cmath>

#include "samba/backends/reference/clones.h"
#include "samba/backends/reference/mamba3.h"
#include "samba/backends/reference/mamba3_arithmetic.h"

namespace samba::reference {

namespace {

// ht(a): 1 + a for a >= 0, else 1 / (1 - a)
float half_tangent(float a) {
  const float v = flush(a);
  return v >= 0.0F ? add(1.0F, v) : div(1.0F, sub(1.0F, v));
}

float decay_rate(float raw) {
  const float a = -half_tangent(raw);
  return a > -kAFloor ? -kAFloor : a;
}

void normalize_state_vector(const float* v, const float* weight, float* out) {
  const float rstd = norm_rstd(serial_sumsq(v), static_cast<float>(kStateSize));
  for (Index n = 0; n < kStateSize; ++n) out[n] = mul(weight[n], mul(v[n], rstd));
}

SAMBA_FMA_CLONES void prepare_token(const Mamba3Call& call, Index m) {
  const Index heads = call.heads();
  const mamba3::Columns columns = mamba3::columns(call.d_model);
  const float* row = call.in_proj + m * mamba3::projection_width(call.d_model);
  for (Index h = 0; h < heads; ++h) {
    const Index at = m * heads + h;
    const float a = decay_rate(row[columns.a + h]);
    const float dt = flush(elementary::softplus(add(row[columns.dt + h], call.dt_bias[h])));
    call.a[at] = a;
    call.current.dt[at] = dt;
    call.current.adt[at] = mul(a, dt);
    call.current.sigma[at] = sigmoid_flushed(row[columns.trap + h]);
  }
  normalize_state_vector(row + columns.b, call.b_norm_weight, call.b_normed + m * kStateSize);
  normalize_state_vector(row + columns.c, call.c_norm_weight, call.c_normed + m * kStateSize);
  for (Index r = 0; r < kAngles; ++r) {
    call.angle_rate[m * kAngles + r] = mul(elementary::tanh(row[columns.angle + r]), kPi);
  }
}

SAMBA_FMA_CLONES void accumulate_head_angles(const Mamba3Call& call, Index b, Index h) {
  const Index heads = call.heads();
  float* theta = call.theta == nullptr ? nullptr : call.theta + (b * heads + h) * kAngles;
  float run[kAngles] = {};
  if (theta != nullptr) std::copy_n(theta, kAngles, run);
  for (Index m = b * call.tokens; m < (b + 1) * call.tokens; ++m) {
    const float dt = call.current.dt[m * heads + h];
    float* angles = call.angles + (m * heads + h) * kAngles;
    for (Index r = 0; r < kAngles; ++r) {
      const float sum = add(run[r], mul(call.angle_rate[m * kAngles + r], dt));
      run[r] = flush(fma(-kTwoPi, std::floor(div(sum, kTwoPi)), sum));
      angles[r] = run[r];
    }
  }
  if (theta != nullptr) std::copy_n(run, kAngles, theta);
}

// (x0, x1) turned by the angle whose cosine and sine are c and s.
void turn_pair(const float* x, float c, float s, float* out) {
  out[0] = sub(mul(x[0], c), mul(x[1], s));
  out[1] = add(mul(x[0], s), mul(x[1], c));
}

SAMBA_FMA_CLONES void rotate_token(const Mamba3Call& call, Index m) {
  const Index heads = call.heads();
  for (Index h = 0; h < heads; ++h) {
    const Index at = m * heads + h;
    float q[kStateSize];
    float k[kStateSize];
    float chain = 0.0F;
    for (Index n = 0; n < kStateSize; ++n) {
      q[n] = add(call.c_normed[m * kStateSize + n], call.c_bias[h * kStateSize + n]);
      k[n] = add(call.b_normed[m * kStateSize + n], call.b_bias[h * kStateSize + n]);
      chain = mad(q[n], k[n], chain);
    }
    call.qk_chain[at] = chain;

    float* q_out = call.current.q + at * kStateSize;
    float* k_out = call.current.k + at * kStateSize;
    for (Index j = 0; j < kAngles; ++j) {
      const float angle = call.angles[at * kAngles + j];
      const float c = flush(elementary::cos(angle));
      const float s = flush(elementary::sin(angle));
      turn_pair(q + 2 * j, c, s, q_out + 2 * j);
      turn_pair(k + 2 * j, c, s, k_out + 2 * j);
    }
    std::copy(q + 2 * kAngles, q + kStateSize, q_out + 2 * kAngles);
    std::copy(k + 2 * kAngles, k + kStateSize, k_out + 2 * kAngles);
  }
}

}  // namespace

void Mamba3Reference::prepare_tokens(const Mamba3Call& call) {
  for (Index m = 0; m < call.new_rows(); ++m) prepare_token(call, m);
}

void Mamba3Reference::accumulate_angles(const Mamba3Call& call) {
  for (Index b = 0; b < call.batch; ++b) {
    for (Index h = 0; h < call.heads(); ++h) accumulate_head_angles(call, b, h);
  }
}

void Mamba3Reference::rotate(const Mamba3Call& call) {
  for (Index m = 0; m < call.new_rows(); ++m) rotate_token(call, m);
}

void Mamba3Reference::weigh(const Mamba3Call& call) {
  const Index heads = call.heads();
  const Index length = call.working_rows();
  for (Index b = 0; b < call.batch; ++b) {
    for (Index h = 0; h < heads; ++h) {
      const WorkingRows rows(call, b, h);
      for (Index t = 0; t < length; ++t) {
        const Index at = (b * length + t) * heads + h;
        const float gamma = mul(rows.dt(t), rows.sigma(t));
        // The look-ahead: only the very last working row has none.
        const float beta = t + 1 < length ? mul(rows.dt(t + 1), sub(1.0F, rows.sigma(t + 1))) : 0.0F;
        const float scale = add(gamma, beta);
        call.gamma[at] = gamma;
        call.scale[at] = scale;
        const float* k = rows.k(t);
        for (Index n = 0; n < kStateSize; ++n) call.k_scaled[at * kStateSize + n] = mul(k[n], scale);
      }
    }
  }
}

}  // namespace samba::reference
