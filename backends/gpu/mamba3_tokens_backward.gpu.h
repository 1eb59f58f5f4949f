// Mamba-3, backward of what happens token by token: gate, rotation, trapezoid, angles, B and C norms (spec 41 sections
// 3.2, 3.3 and 3.9 to 3.15).
#pragma once

#include "samba/backends/gpu/mamba3_tokens.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

struct TokensBackward {
  Mamba3Call call;
  Mamba3Gradients g;
};

SAMBA_DEVICE float* gradient_row(const TokensBackward& s, Index m) {
  return s.g.d_in_proj + m * mamba3::projection_width(s.call.d_model);
}

// kRowBlock rows of (token, head)                                                 section 3.2
SAMBA_KERNEL(kRowThreads) gate_rows(TokensBackward s) {
  SAMBA_SHARED(float, dys, kRowBlock* kPairPitch);
  SAMBA_SHARED(float, vs, kRowBlock* kPairPitch);
  const Index heads = s.call.heads();
  const mamba3::Columns columns = mamba3::columns(s.call.d_model);
  const RowBlock block = row_block(s.call.new_rows() * heads);
  for_row_elements(block, kP, [&](int r, int p) {
    const Index at = block.first + r, m = at / heads, h = at % heads;
    const float* row = projected_row(s.call, m) + h * kP + p;
    const float z = flush(row[columns.z]), d_gate = s.g.d_gate[at * kP + p];
    const float weight = add(s.call.d[h], mul(s.call.qk_chain[at], s.call.gamma[at]));
    const float dy = mul(d_gate, silu_flushed(z));
    const float sigmoid = sigmoid_flushed(z);
    const float middle = mad(z, sub(1.0F, sigmoid), 1.0F);
    gradient_row(s, m)[columns.z + h * kP + p] = mul(mul(d_gate, s.call.skip[at * kP + p]), mul(sigmoid, middle));
    s.g.d_skip[at * kP + p] = dy;
    s.g.d_v_skip[at * kP + p] = mul(dy, weight);
    dys[r * kPairPitch + p] = dy;
    vs[r * kPairPitch + p] = flush(row[columns.x]);
  });
  barrier();
  const int thread = static_cast<int>(thread_index());
  if (thread >= block.rows) return;
  float sum = 0.0F;
  for (int p = 0; p < kP; ++p) sum = flush(fma(dys[thread * kPairPitch + p], vs[thread * kPairPitch + p], sum));
  s.g.d_qkdot[block.first + thread] = sum;
}

// The gradients (g0, g1) of a rotated pair before its rotation; (x0, x1) is the un-rotated pair. Adds the pair's two
// steps to the chain of d_theta.                                                  section 3.10
SAMBA_DEVICE float unturn_pair(float g0, float g1, float x0, float x1, float c, float s, float d_theta, float* out) {
  out[0] = add(mul(g0, c), mul(g1, s));
  out[1] = sub(mul(g1, c), mul(g0, s));
  d_theta = mad(g0, sub(-mul(x0, s), mul(x1, c)), d_theta);
  return mad(g1, sub(mul(x0, c), mul(x1, s)), d_theta);
}

// d_scale, d_krot and the gradients before the rotation of kRowBlock rows          sections 3.3, 3.9, 3.10, 3.12
SAMBA_KERNEL(kRowThreads) unrotate_rows(TokensBackward s) {
  SAMBA_SHARED(float, d_ks, kRowBlock* kRowPitch);
  SAMBA_SHARED(float, ks, kRowBlock* kRowPitch);
  const Mamba3Call& call = s.call;
  const Index heads = call.heads();
  const RowBlock block = row_block(call.new_rows() * heads);
  for_row_elements(block, kN, [&](int r, int n) {
    d_ks[r * kRowPitch + n] = flush(s.g.d_k[(block.first + r) * kN + n]);
    ks[r * kRowPitch + n] = flush(call.current.k[(block.first + r) * kN + n]);
  });
  barrier();
  const int thread = static_cast<int>(thread_index());
  if (thread < block.rows) {
    float sum = 0.0F;
    for (int n = 0; n < kN; ++n) sum = flush(fma(d_ks[thread * kRowPitch + n], ks[thread * kRowPitch + n], sum));
    s.g.d_scale[block.first + thread] = sum;
  }
  for_row_elements(block, kN / 2, [&](int r, int j) {
    const Index at = block.first + r, m = at / heads, h = at % heads;
    const Index cell = at * kN + 2 * j;
    const float common = mul(s.g.d_qkdot[at], call.gamma[at]), scale = call.scale[at];
    float q[2], k[2], d_krot[2], d_q[2], d_qraw[2], d_kraw[2];
    SAMBA_UNROLL
    for (int x = 0; x < 2; ++x) {
      const int n = 2 * j + x;
      q[x] = add(call.c_normed[m * kN + n], call.c_bias[h * kN + n]);
      k[x] = add(call.b_normed[m * kN + n], call.b_bias[h * kN + n]);
      d_q[x] = d_qraw[x] = s.g.d_q[cell + x];
      d_krot[x] = d_kraw[x] = mul(d_ks[r * kRowPitch + n], scale);
    }
    if (j < kR) {
      const float angle = call.angles[at * kR + j];
      const float cosine = flush(elementary::cos(angle)), sine = flush(elementary::sin(angle));
      const float of_q = unturn_pair(d_q[0], d_q[1], q[0], q[1], cosine, sine, 0.0F, d_qraw);
      s.g.d_theta[at * kR + j] = unturn_pair(d_krot[0], d_krot[1], k[0], k[1], cosine, sine, of_q, d_kraw);
    }
    SAMBA_UNROLL
    for (int x = 0; x < 2; ++x) {
      s.g.d_krot[cell + x] = d_krot[x];
      s.g.d_qraw[cell + x] = d_qraw[x];
      s.g.d_kraw[cell + x] = d_kraw[x];
      s.g.d_b[cell + x] = add(mul(common, q[x]), d_kraw[x]);
      s.g.d_c[cell + x] = add(mul(common, k[x]), d_qraw[x]);
    }
  });
}

// dt and the trapezoid: the qk diagonal's legs, then the key scale of this token and of the one before.
//                                                                                 sections 3.3, 3.12
struct TrapezoidGradients {
  TokensBackward s;
  SAMBA_DEVICE void operator()(Index at) const {
    const Index heads = s.call.heads();
    const float dt = s.call.current.dt[at], sigma = s.call.current.sigma[at], rest = sub(1.0F, sigma);
    const float d_gamma = mul(s.g.d_qkdot[at], s.call.qk_chain[at]);
    const float d_dt_qk = mul(d_gamma, sigma);
    const float d_trap_qk = mul(mul(mul(d_gamma, dt), sigma), rest);
    const float d_scale = s.g.d_scale[at];
    float d_dt = add(d_dt_qk, mul(d_scale, sigma));
    float d_trap = add(d_trap_qk, mul(mul(mul(d_scale, dt), sigma), rest));
    if (at / heads % s.call.tokens > 0) {
      const float before = s.g.d_scale[at - heads];
      d_dt = add(d_dt, mul(before, rest));
      d_trap = add(d_trap, mul(mul(-mul(before, dt), sigma), rest));
    }
    s.g.d_dt_qk[at] = d_dt_qk;
    s.g.d_trap_qk[at] = d_trap_qk;
    s.g.d_dt_cur[at] = d_dt;
    s.g.d_trap[at] = d_trap;
  }
};

// Suffix sums of d_theta over the sequence, in blocks of 64 tokens at absolute positions. First the totals of the
// blocks, [unit, r] (unit: batch row, head, block), then each block from the sum of the totals behind it, last block
// first.                                                                          section 3.13
struct AngleSums {
  TokensBackward s;
  float* totals;
  bool only_totals;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index r = i % kR;
    const ChunkPlace at = chunk_place(s.call, i / kR, 0, s.call.chunks());
    float run = 0.0F;
    if (!only_totals) {
      for (Index behind = s.call.chunks() - 1 - at.c; behind > 0; --behind) run = add(run, totals[i + behind * kR]);
    }
    for (int t = at.real - 1; t >= 0; --t) {
      const Index cell = new_row(s.call, at, t) * kR + r;
      run = add(run, s.g.d_theta[cell]);
      if (!only_totals) s.g.d_theta_suffix[cell] = run;
    }
    if (only_totals) totals[i] = run;
  }
};

// The slope of A = -ht(a) by its raw argument; 0 where the floor binds            section 3.11
SAMBA_DEVICE float decay_rate_gradient(float raw, float d_a) {
  const float a = flush(raw);
  const float tangent = half_tangent(a);
  if (-tangent > -kAFloor) return 0.0F;
  return -mul(d_a, a >= 0.0F ? 1.0F : mul(tangent, tangent));
}

// dt, A and trap of each token and head                                           sections 3.11, 3.13, 3.14
struct ScalarGradients {
  TokensBackward s;
  SAMBA_DEVICE void operator()(Index at) const {
    const Mamba3Call& call = s.call;
    const Index heads = call.heads(), m = at / heads, h = at % heads;
    const mamba3::Columns columns = mamba3::columns(call.d_model);
    const float* row = projected_row(call, m);
    float d_dt_angle = 0.0F;
    for (int r = 0; r < kR; ++r) {
      d_dt_angle = mad(s.g.d_theta_suffix[at * kR + r], call.angle_rate[m * kR + r], d_dt_angle);
    }
    const float d_dt_a = mul(s.g.d_adt[at], call.a[at]);
    const float d_dt = add(add(s.g.d_dt_cur[at], d_dt_a), d_dt_angle);
    const float before_softplus = add(row[columns.dt + h], call.dt_bias[h]);
    const float slope = before_softplus <= 20.0F ? sigmoid_flushed(before_softplus) : 1.0F;
    const float d_dd_dt = mul(d_dt, slope);
    const float d_dd_a = decay_rate_gradient(row[columns.a + h], mul(s.g.d_adt[at], call.current.dt[at]));
    s.g.d_dt_angle[at] = d_dt_angle;
    s.g.d_dd_dt[at] = d_dd_dt;
    s.g.d_dd_a[at] = d_dd_a;
    float* d_row = gradient_row(s, m);
    d_row[columns.dt + h] = d_dd_dt;
    d_row[columns.a + h] = d_dd_a;
    d_row[columns.trap + h] = s.g.d_trap[at];
  }
};

// The x columns: d_v as it is.
struct ValueColumns {
  TokensBackward s;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index inner = s.call.heads() * kP;
    gradient_row(s, i / inner)[mamba3::columns(s.call.d_model).x + i % inner] = s.g.d_v[i];
  }
};

// The angle columns: sums over the heads ascending                                section 3.13
struct AngleGradients {
  TokensBackward s;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index heads = s.call.heads(), m = i / kR, r = i % kR;
    const Index column = mamba3::columns(s.call.d_model).angle + r;
    float sum = 0.0F;
    for (Index h = 0; h < heads; ++h) {
      const Index at = m * heads + h;
      sum = add(sum, mul(s.g.d_theta_suffix[at * kR + r], s.call.current.dt[at]));
    }
    const float tangent = elementary::tanh(projected_row(s.call, m)[column]);
    gradient_row(s, m)[column] = mul(sum, mul(kPi, sub(1.0F, mul(tangent, tangent))));
  }
};

inline constexpr int kNormRows = 8;

// The B norm (y = 0) and the C norm (y = 1) of kNormRows tokens: a thread an element; then one thread a row and sum.
//                                                                                 section 3.15
SAMBA_KERNEL(kN) state_norm_gradients(TokensBackward s) {
  SAMBA_SHARED(float, xs, kNormRows* kRowPitch);
  SAMBA_SHARED(float, scaled, kNormRows* kRowPitch);
  SAMBA_SHARED(float, sums, 2 * kNormRows);  // of squares, of the dot
  const Mamba3Call& call = s.call;
  const Index heads = call.heads();
  const mamba3::Columns columns = mamba3::columns(call.d_model);
  const bool is_c = block_y() == 1;
  const Index column = is_c ? columns.c : columns.b;
  const float* weight = is_c ? call.c_norm_weight : call.b_norm_weight;
  const float* d_heads = is_c ? s.g.d_c : s.g.d_b;
  float* weight_rows = is_c ? s.g.c_weight_rows : s.g.b_weight_rows;
  const int n = static_cast<int>(thread_index());
  const Index first = static_cast<Index>(block_x()) * kNormRows;
  const int rows = call.new_rows() - first < kNormRows ? static_cast<int>(call.new_rows() - first) : kNormRows;

  float gradient[kNormRows];
  SAMBA_UNROLL
  for (int r = 0; r < kNormRows; ++r) {
    if (r >= rows) continue;
    float sum = 0.0F;
    for (Index h = 0; h < heads; ++h) sum = add(sum, d_heads[((first + r) * heads + h) * kN + n]);
    gradient[r] = sum;
    xs[r * kRowPitch + n] = flush(projected_row(call, first + r)[column + n]);
    scaled[r * kRowPitch + n] = mul(sum, weight[n]);
  }
  barrier();
  const bool squares = n < kN / 2;
  const int line = n % (kN / 2);
  if (line < rows) {
    const float* x = xs + line * kRowPitch;
    const float* y = squares ? x : scaled + line * kRowPitch;
    float sum = 0.0F;
    for (int e = 0; e < kN; ++e) sum = flush(fma(y[e], x[e], sum));
    sums[(squares ? 0 : kNormRows) + line] = sum;
  }
  barrier();
  SAMBA_UNROLL
  for (int r = 0; r < kNormRows; ++r) {
    if (r >= rows) continue;
    const float rstd = state_norm_rstd(sums[r]);
    const float correction = mul(mul(rstd, rstd), div(sums[kNormRows + r], static_cast<float>(kN)));
    const float x = xs[r * kRowPitch + n];
    weight_rows[(first + r) * kN + n] = mul(gradient[r], mul(x, rstd));
    gradient_row(s, first + r)[column + n] = mul(rstd, sub(scaled[r * kRowPitch + n], mul(x, correction)));
  }
}

void launch_gate_backward(Context& context, const Mamba3Call& call, const Mamba3Gradients& gradients) {
  launch(context, row_grid(call.new_rows() * call.heads()), kRowThreads, gate_rows, TokensBackward{call, gradients});
}

void launch_rotate_backward(Context& context, const Mamba3Call& call, const Mamba3Gradients& gradients) {
  const Index cells = call.new_rows() * call.heads();
  const TokensBackward s{call, gradients};
  launch(context, row_grid(cells), kRowThreads, unrotate_rows, s);
  for_each(context, cells, TrapezoidGradients{s});
}

void launch_tokens_backward(Context& context, const Mamba3Call& call, const Mamba3Gradients& gradients) {
  const Index rows = call.new_rows(), cells = rows * call.heads();
  const TokensBackward s{call, gradients};
  const Workspace::Scope scope(context.workspace());
  const Index sums = call.batch * call.heads() * call.chunks() * kR;
  float* totals = context.workspace().floats(sums);
  for_each(context, sums, AngleSums{s, totals, true});
  for_each(context, sums, AngleSums{s, totals, false});
  for_each(context, cells, ScalarGradients{s});
  for_each(context, cells * kP, ValueColumns{s});
  for_each(context, rows * kR, AngleGradients{s});
  launch(context, Grid{blocks_of((rows + kNormRows - 1) / kNormRows), 2}, kN, state_norm_gradients, s);
}

}  // namespace

}  // namespace samba::SAMBA_GPU
