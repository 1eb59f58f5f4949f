// Mamba-3, what happens token by token: scalars, B and C norms, angles, rotation, trapezoid weights (spec 40 sections
// 3.3 to 3.8). Serial sums along rows of 128: a block brings kRowBlock rows to shared memory, one thread a row sums.
#pragma once

#include "samba/backends/gpu/mamba3_rows.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr int kRowBlock = 16;
inline constexpr int kRowPitch = kN + 1;
inline constexpr int kRowThreads = 128;

inline Grid row_grid(Index rows) { return Grid{static_cast<unsigned>((rows + kRowBlock - 1) / kRowBlock)}; }

// The rows of this block.
struct RowBlock {
  Index first;
  int rows;
};
SAMBA_DEVICE RowBlock row_block(Index rows) {
  const Index first = static_cast<Index>(block_x()) * kRowBlock;
  return {first, rows - first < kRowBlock ? static_cast<int>(rows - first) : kRowBlock};
}

// body(row of the block, element) for the elements of its rows of `width`; neighbouring threads, neighbouring elements.
template <class Body>
SAMBA_DEVICE void for_row_elements(const RowBlock& block, int width, Body&& body) {
  for (int e = static_cast<int>(thread_index()); e < block.rows * width; e += kRowThreads) body(e / width, e % width);
}

// Of each new token and head: A, dt, A dt, sigmoid(trap)                          section 3.3
struct TokenScalars {
  Mamba3Call call;
  SAMBA_DEVICE void operator()(Index at) const {
    const Index heads = call.heads();
    const Index h = at % heads;
    const mamba3::Columns columns = mamba3::columns(call.d_model);
    const float* row = projected_row(call, at / heads);
    const float rate = -half_tangent(flush(row[columns.a + h]));
    const float a = rate > -kAFloor ? -kAFloor : rate;
    const float dt = flush(elementary::softplus(add(row[columns.dt + h], call.dt_bias[h])));
    call.a[at] = a;
    call.current.dt[at] = dt;
    call.current.adt[at] = mul(a, dt);
    call.current.sigma[at] = sigmoid_flushed(row[columns.trap + h]);
  }
};

// mul(tanh(angle), PI)                                                            section 3.7
struct AngleRates {
  Mamba3Call call;
  SAMBA_DEVICE void operator()(Index i) const {
    const float angle = projected_row(call, i / kR)[mamba3::columns(call.d_model).angle + i % kR];
    call.angle_rate[i] = mul(elementary::tanh(angle), kPi);
  }
};

// The B norm (y = 0) and the C norm (y = 1) of kRowBlock tokens                   section 3.4
SAMBA_KERNEL(kRowThreads) normalize_state_vectors(Mamba3Call call) {
  SAMBA_SHARED(float, values, kRowBlock* kRowPitch);
  SAMBA_SHARED(float, roots, kRowBlock);
  const RowBlock block = row_block(call.new_rows());
  const bool is_c = block_y() == 1;
  const mamba3::Columns columns = mamba3::columns(call.d_model);
  const Index column = is_c ? columns.c : columns.b;
  const float* weight = is_c ? call.c_norm_weight : call.b_norm_weight;
  float* normed = is_c ? call.c_normed : call.b_normed;
  for_row_elements(block, kN, [&](int r, int n) {
    values[r * kRowPitch + n] = flush(projected_row(call, block.first + r)[column + n]);
  });
  barrier();
  const int thread = static_cast<int>(thread_index());
  if (thread < block.rows) {
    float sumsq = 0.0F;
    for (int n = 0; n < kN; ++n) {
      const float v = values[thread * kRowPitch + n];
      sumsq = flush(fma(v, v, sumsq));
    }
    roots[thread] = state_norm_rstd(sumsq);
  }
  barrier();
  for_row_elements(block, kN, [&](int r, int n) {
    normed[(block.first + r) * kN + n] = mul(weight[n], mul(values[r * kRowPitch + n], roots[r]));
  });
}

// One chain a batch row, head and angle, over the new tokens                      section 3.7
struct AccumulateAngles {
  Mamba3Call call;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index heads = call.heads();
    const Index r = i % kR, h = i / kR % heads, b = i / kR / heads;
    float run = call.theta == nullptr ? 0.0F : call.theta[i];
    for (Index m = b * call.tokens; m < (b + 1) * call.tokens; ++m) {
      const float sum = add(run, mul(call.angle_rate[m * kR + r], call.current.dt[m * heads + h]));
      run = flush(fma(-kTwoPi, std::floor(div(sum, kTwoPi)), sum));
      call.angles[(m * heads + h) * kR + r] = run;
    }
    if (call.theta != nullptr) call.theta[i] = run;
  }
};

// The biased vectors, their un-rotated chain and the rotation of kRowBlock rows of (token, head)    section 3.8
SAMBA_KERNEL(kRowThreads) rotate_rows(Mamba3Call call) {
  SAMBA_SHARED(float, q, kRowBlock* kRowPitch);
  SAMBA_SHARED(float, k, kRowBlock* kRowPitch);
  const Index heads = call.heads();
  const RowBlock block = row_block(call.new_rows() * heads);
  for_row_elements(block, kN, [&](int r, int n) {
    const Index m = (block.first + r) / heads, h = (block.first + r) % heads;
    q[r * kRowPitch + n] = add(call.c_normed[m * kN + n], call.c_bias[h * kN + n]);
    k[r * kRowPitch + n] = add(call.b_normed[m * kN + n], call.b_bias[h * kN + n]);
  });
  barrier();
  const int thread = static_cast<int>(thread_index());
  if (thread < block.rows) {
    float chain = 0.0F;
    for (int n = 0; n < kN; ++n) chain = flush(fma(q[thread * kRowPitch + n], k[thread * kRowPitch + n], chain));
    call.qk_chain[block.first + thread] = chain;
  }
  for_row_elements(block, kN / 2, [&](int r, int j) {
    const Index at = block.first + r;
    float* q_out = call.current.q + at * kN + 2 * j;
    float* k_out = call.current.k + at * kN + 2 * j;
    const float* x = q + r * kRowPitch + 2 * j;
    const float* y = k + r * kRowPitch + 2 * j;
    if (j >= kR) {
      q_out[0] = x[0], q_out[1] = x[1];
      k_out[0] = y[0], k_out[1] = y[1];
      return;
    }
    const float angle = call.angles[at * kR + j];
    const float c = flush(elementary::cos(angle)), s = flush(elementary::sin(angle));
    q_out[0] = sub(mul(x[0], c), mul(x[1], s));
    q_out[1] = add(mul(x[0], s), mul(x[1], c));
    k_out[0] = sub(mul(y[0], c), mul(y[1], s));
    k_out[1] = add(mul(y[0], s), mul(y[1], c));
  });
}

// gamma and scale of every working row                                            section 3.6
struct TrapezoidWeights {
  Mamba3Call call;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index heads = call.heads(), length = call.working_rows();
    const Index h = i % heads, t = i / heads % length, b = i / heads / length;
    const float gamma = mul(dt_of(call, b, h, t), sigma_of(call, b, h, t));
    // The look-ahead: only the very last working row has none.
    const float beta = t + 1 < length ? mul(dt_of(call, b, h, t + 1), sub(1.0F, sigma_of(call, b, h, t + 1))) : 0.0F;
    call.gamma[i] = gamma;
    call.scale[i] = add(gamma, beta);
  }
};

struct ScaleKeys {
  Mamba3Call call;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index heads = call.heads(), length = call.working_rows();
    const Index row = i / kN;
    call.k_scaled[i] =
        scaled_key(call, row / heads / length, row % heads, row / heads % length, static_cast<int>(i % kN));
  }
};

void launch_prepare_tokens(Context& context, const Mamba3Call& call) {
  const Index rows = call.new_rows();
  for_each(context, rows * call.heads(), TokenScalars{call});
  for_each(context, rows * kR, AngleRates{call});
  Grid grid = row_grid(rows);
  grid.y = 2;
  launch(context, grid, kRowThreads, normalize_state_vectors, call);
}

void launch_accumulate_angles(Context& context, const Mamba3Call& call) {
  for_each(context, call.batch * call.heads() * kR, AccumulateAngles{call});
}

void launch_rotate(Context& context, const Mamba3Call& call) {
  launch(context, row_grid(call.new_rows() * call.heads()), kRowThreads, rotate_rows, call);
}

void launch_weigh(Context& context, const Mamba3Call& call) {
  const Index cells = call.batch * call.working_rows() * call.heads();
  for_each(context, cells, TrapezoidWeights{call});
  if (call.dacs != nullptr) for_each(context, cells * kN, ScaleKeys{call});
}

}  // namespace

}  // namespace samba::SAMBA_GPU
