// Norms. Serial sums of a row: a block takes kChainRows rows, its threads bring a square of elements to shared memory,
// and one thread a row adds along it. Sums in 32 lanes: one group of 32 threads a row, and a tree of shuffles.
#pragma once

#include "samba/backends/gpu/families.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr int kChainRows = 32;
inline constexpr int kChainColumns = 32;
inline constexpr int kChainPitch = kChainColumns + 1;
inline constexpr int kChainThreads = 128;
inline constexpr int kLanes = 32;
inline constexpr int kLaneThreads = 128;

SAMBA_DEVICE float reciprocal_root(float sum, Index width, float eps) {
  return flush(elementary::rsqrt(flush(div(sum, static_cast<float>(width)) + eps)));
}

// Calls body(row, column of the row) for all elements of the rows of this block.
template <class Body>
SAMBA_DEVICE void for_block_elements(Index rows, Index width, Body&& body) {
  const Index first = static_cast<Index>(block_x()) * kChainRows;
  const Index count = (rows - first < kChainRows ? rows - first : kChainRows) * width;
  for (Index e = thread_index(); e < count; e += block_threads())
    body(static_cast<int>(e / width), first + e / width, e % width);
}

// The chains acc = F(fma(u, v, acc)) of the rows of this block, u and v by pair(row, column, u, v), flushed. The sum of
// row r of the block is returned to its thread r. `us`, `vs`: kChainRows * kChainPitch floats of shared memory.
template <class Pair>
SAMBA_DEVICE float chain_rows(Index rows, Index width, float* us, float* vs, Pair&& pair) {
  const Index first = static_cast<Index>(block_x()) * kChainRows;
  const int thread = static_cast<int>(thread_index());
  const int column = thread % kChainColumns;
  float acc = 0.0F;
  for (Index c = 0; c < width; c += kChainColumns) {
    for (int r = thread / kChainColumns; r < kChainRows; r += kChainThreads / kChainColumns) {
      if (first + r < rows && c + column < width) {
        pair(first + r, c + column, us[r * kChainPitch + column], vs[r * kChainPitch + column]);
      }
    }
    barrier();
    if (thread < kChainRows && first + thread < rows) {
      const int length = width - c < kChainColumns ? static_cast<int>(width - c) : kChainColumns;
      for (int j = 0; j < length; ++j) {
        acc = flush(fma(us[thread * kChainPitch + j], vs[thread * kChainPitch + j], acc));
      }
    }
    barrier();
  }
  return acc;
}

SAMBA_DEVICE bool owns_row(Index rows) {
  return thread_index() < kChainRows && static_cast<Index>(block_x()) * kChainRows + thread_index() < rows;
}

SAMBA_DEVICE Index owned_row() { return static_cast<Index>(block_x()) * kChainRows + thread_index(); }

SAMBA_KERNEL(kChainThreads)
rms_norm(Index rows, Index width, float eps, bool offset, const float* x, const float* weight, float* y, float* sumsq,
         float* rstd) {
  SAMBA_SHARED(float, us, kChainRows* kChainPitch);
  SAMBA_SHARED(float, vs, kChainRows* kChainPitch);
  SAMBA_SHARED(float, roots, kChainRows);
  const float squares = chain_rows(rows, width, us, vs, [&](Index i, Index j, float& u, float& v) {
    u = flush(x[i * width + j]);
    v = u;
  });
  if (owns_row(rows)) {
    const float root = reciprocal_root(squares, width, eps);
    roots[thread_index()] = root;
    if (sumsq != nullptr) sumsq[owned_row()] = squares;
    if (rstd != nullptr) rstd[owned_row()] = root;
  }
  barrier();
  for_block_elements(rows, width, [&](int r, Index i, Index j) {
    const float scale = offset ? add(1.0F, weight[j]) : weight[j];
    y[i * width + j] = mul(scale, mul(x[i * width + j], roots[r]));
  });
}

SAMBA_KERNEL(kChainThreads)
block_layer_norm(Index rows, Index width, float eps, const float* x, const float* weight, const float* bias, float* y,
                 float* sumsq) {
  SAMBA_SHARED(float, us, kChainRows* kChainPitch);
  SAMBA_SHARED(float, vs, kChainRows* kChainPitch);
  SAMBA_SHARED(float, means, kChainRows);
  SAMBA_SHARED(float, roots, kChainRows);
  const Index first = static_cast<Index>(block_x()) * kChainRows;
  const float sum = chain_rows(rows, width, us, vs, [&](Index i, Index j, float& u, float& v) {
    u = flush(x[i * width + j]);
    v = 1.0F;
  });
  if (owns_row(rows)) means[thread_index()] = div(sum, static_cast<float>(width));
  barrier();
  const float squares = chain_rows(rows, width, us, vs, [&](Index i, Index j, float& u, float& v) {
    u = sub(x[i * width + j], means[i - first]);
    v = u;
  });
  if (owns_row(rows)) {
    roots[thread_index()] = reciprocal_root(squares, width, eps);
    if (sumsq != nullptr) sumsq[owned_row()] = squares;
  }
  barrier();
  for_block_elements(rows, width, [&](int r, Index i, Index j) {
    const float value = mul(weight[j], mul(sub(x[i * width + j], means[r]), roots[r]));
    y[i * width + j] = bias != nullptr ? add(value, bias[j]) : value;
  });
}

// The three backward forms of a norm by the root of the mean square. rows: the gradient's rows for the weight.
enum class RootNorm { rms, mamba3, mamba12 };

struct RootNormGradient {
  Index rows, width;
  float eps;
  const float *x, *weight, *sumsq;  // sumsq null: a chain over the row
  const float *dy, *residual_gradient;
  float *dx, *weight_rows, *dot;
};

template <RootNorm kForm>
SAMBA_DEVICE float root_norm_gradient(const RootNormGradient& g, float rstd, float c, Index i, Index j) {
  const float x = g.x[i * g.width + j];
  const float gradient = mul(g.dy[i * g.width + j], g.weight[j]);
  const auto width = static_cast<float>(g.width);
  switch (kForm) {
    case RootNorm::rms: {
      const float cube = mul(mul(rstd, rstd), rstd);
      const float dv = div(mul(-0.5F, mul(c, cube)), width);
      return add(mul(gradient, rstd), mul(dv, mul(2.0F, x)));
    }
    case RootNorm::mamba3: {
      const float correction = mul(mul(rstd, rstd), div(c, width));
      return add(mul(rstd, sub(gradient, mul(x, correction))), g.residual_gradient[i * g.width + j]);
    }
    case RootNorm::mamba12: {
      const float q = div(mul(mul(rstd, rstd), rstd), width);
      const float dv = sub(mul(rstd, gradient), mul(mul(q, x), c));
      return g.residual_gradient != nullptr ? add(g.residual_gradient[i * g.width + j], dv) : dv;
    }
  }
  return 0.0F;
}

template <RootNorm kForm>
SAMBA_KERNEL(kChainThreads)
root_norm_backward(RootNormGradient g) {
  SAMBA_SHARED(float, us, kChainRows* kChainPitch);
  SAMBA_SHARED(float, vs, kChainRows* kChainPitch);
  SAMBA_SHARED(float, roots, kChainRows);
  SAMBA_SHARED(float, dots, kChainRows);
  float squares = 0.0F;
  if (g.sumsq == nullptr) {
    squares = chain_rows(g.rows, g.width, us, vs, [&](Index i, Index j, float& u, float& v) {
      u = flush(g.x[i * g.width + j]);
      v = u;
    });
  } else if (owns_row(g.rows)) {
    squares = g.sumsq[owned_row()];
  }
  const float c = chain_rows(g.rows, g.width, us, vs, [&](Index i, Index j, float& u, float& v) {
    u = mul(g.dy[i * g.width + j], g.weight[j]);
    v = flush(g.x[i * g.width + j]);
  });
  if (owns_row(g.rows)) {
    roots[thread_index()] = reciprocal_root(squares, g.width, g.eps);
    dots[thread_index()] = c;
    if (g.dot != nullptr) g.dot[owned_row()] = c;
  }
  barrier();
  for_block_elements(g.rows, g.width, [&](int r, Index i, Index j) {
    const Index at = i * g.width + j;
    g.weight_rows[at] = mul(g.dy[at], mul(g.x[at], roots[r]));
    g.dx[at] = root_norm_gradient<kForm>(g, roots[r], dots[r], i, j);
  });
}

// The row of this group of 32 threads; `width` 0 for a group without one, whose threads take part in the shuffles.
struct LaneRow {
  Index row, width;
  Index lane;
};

SAMBA_DEVICE LaneRow lane_row(Index rows, Index width) {
  const Index row = global_thread() / kLanes;
  return {row, row < rows ? width : 0, static_cast<Index>(thread_index()) % kLanes};
}

// This lane's chain of term(j, acc) over j = lane, lane + 32, ...
template <class Term>
SAMBA_DEVICE float lane_chain(const LaneRow& r, Term&& term) {
  float acc = 0.0F;
  for (Index j = r.lane; j < r.width; j += kLanes) acc = term(j, acc);
  return acc;
}

// Halves meet, lane l with lane l + h (spec 10 section 7.2). An add has the same bits from both sides, so that all
// lanes hold the sum.
SAMBA_DEVICE float meet_halves(float value) {
  for (int h = kLanes / 2; h >= 1; h /= 2) value = add(value, shuffle_xor(value, h));
  return value;
}

// Neighbours meet, lane 2l with lane 2l + 1 (spec 40 section 3.1).
SAMBA_DEVICE float meet_neighbours(float value) {
  for (int h = 1; h < kLanes; h *= 2) value = add(value, shuffle_xor(value, h));
  return value;
}

struct LaneMoments {
  float mean, rstd;
};

SAMBA_DEVICE LaneMoments lane_moments(const LaneRow& r, Index width, float eps, const float* x) {
  const float sum = meet_halves(lane_chain(r, [&](Index j, float acc) { return add(acc, x[j]); }));
  const float mean = div(sum, static_cast<float>(width));
  const float squares = meet_halves(lane_chain(r, [&](Index j, float acc) {
    const float deviation = sub(x[j], mean);
    return mad(deviation, deviation, acc);
  }));
  return {mean, reciprocal_root(squares, width, eps)};
}

SAMBA_KERNEL(kLaneThreads)
layer_norm(Index rows, Index width, float eps, const float* x, const float* weight, const float* bias, float* y) {
  const LaneRow r = lane_row(rows, width);
  const float* row = x + r.row * width;
  const LaneMoments moments = lane_moments(r, width, eps, row);
  for (Index j = r.lane; j < r.width; j += kLanes) {
    float value = mul(sub(row[j], moments.mean), moments.rstd);
    if (weight != nullptr) value = mul(weight[j], value);
    if (bias != nullptr) value = add(value, bias[j]);
    y[r.row * width + j] = value;
  }
}

struct LayerNormGradient {
  Index rows, width;
  float eps;
  const float *x, *weight, *dy;
  float *normed, *dx;  // normed: the normalised x, for the weight's gradient
};

SAMBA_KERNEL(kLaneThreads)
layer_norm_dx(LayerNormGradient g) {
  const LaneRow r = lane_row(g.rows, g.width);
  const Index at = r.row * g.width;
  const LaneMoments moments = lane_moments(r, g.width, g.eps, g.x + at);
  const auto gradient = [&](Index j) {
    return g.weight != nullptr ? mul(g.dy[at + j], g.weight[j]) : flush(g.dy[at + j]);
  };
  const auto normed = [&](Index j) { return mul(sub(g.x[at + j], moments.mean), moments.rstd); };
  const auto width = static_cast<float>(g.width);
  const float mean_gradient =
      div(meet_halves(lane_chain(r, [&](Index j, float acc) { return add(acc, gradient(j)); })), width);
  const float mean_product =
      div(meet_halves(lane_chain(r, [&](Index j, float acc) { return mad(gradient(j), normed(j), acc); })), width);
  for (Index j = r.lane; j < r.width; j += kLanes) {
    g.normed[at + j] = normed(j);
    g.dx[at + j] = mul(moments.rstd, sub(sub(gradient(j), mean_gradient), mul(normed(j), mean_product)));
  }
}

// d_weight[j] and d_bias[j]: serial in each block of `block` rows, then the block results serially.
struct LayerNormWeights {
  Index rows, width, block;
  const float *normed, *dy;
  float *d_weight, *d_bias;
  SAMBA_DEVICE void operator()(Index j) const {
    float weight_total = 0.0F, bias_total = 0.0F;
    for (Index first = 0; first < rows; first += block) {
      float weight_sum = 0.0F, bias_sum = 0.0F;
      for (Index i = first; i < rows && i < first + block; ++i) {
        weight_sum = mad(dy[i * width + j], normed[i * width + j], weight_sum);
        bias_sum = add(bias_sum, dy[i * width + j]);
      }
      weight_total = rows <= block ? weight_sum : add(weight_total, weight_sum);
      bias_total = rows <= block ? bias_sum : add(bias_total, bias_sum);
    }
    if (d_weight != nullptr) d_weight[j] = weight_total;
    if (d_bias != nullptr) d_bias[j] = bias_total;
  }
};

SAMBA_KERNEL(kLaneThreads)
mamba_norm(Index rows, Index width, float eps, const float* x, const float* weight, float* y, float* sumsq) {
  const LaneRow r = lane_row(rows, width);
  const float* row = x + r.row * width;
  const float squares = meet_neighbours(lane_chain(r, [&](Index j, float acc) { return mad(row[j], row[j], acc); }));
  const float root = reciprocal_root(squares, width, eps);
  for (Index j = r.lane; j < r.width; j += kLanes) y[r.row * width + j] = mul(weight[j], mul(row[j], root));
  if (sumsq != nullptr && r.width > 0 && r.lane == 0) sumsq[r.row] = squares;
}

class NormGpu final : public NormKernels {
 public:
  explicit NormGpu(Context& context) : context_(context) {}

  void rms_norm_forward(Index rows, Index width, float eps, bool offset, const float* x, const float* weight, float* y,
                        float* sumsq, float* rstd) override {
    launch(context_, chain_grid(rows), kChainThreads, rms_norm, rows, width, eps, offset, x, weight, y, sumsq, rstd);
  }
  void rms_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight, const float* dy,
                         float* dx, float* d_weight, float* dot) override {
    root_backward<RootNorm::rms>({rows, width, eps, x, weight, nullptr, dy, nullptr, dx, nullptr, dot}, d_weight);
  }
  void layer_norm_block(Index rows, Index width, float eps, const float* x, const float* weight, const float* bias,
                        float* y, float* sumsq) override {
    launch(context_, chain_grid(rows), kChainThreads, block_layer_norm, rows, width, eps, x, weight, bias, y, sumsq);
  }
  void layer_norm_forward(Index rows, Index width, float eps, const float* x, const float* weight, const float* bias,
                          float* y) override {
    launch(context_, lane_grid(rows), kLaneThreads, layer_norm, rows, width, eps, x, weight, bias, y);
  }
  void layer_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight, const float* dy,
                           float* dx, float* d_weight, float* d_bias) override {
    const Workspace::Scope scope(context_.workspace());
    float* normed = context_.workspace().floats(rows * width);
    float* result = context_.workspace().floats(rows * width);
    launch(context_, lane_grid(rows), kLaneThreads, layer_norm_dx,
           LayerNormGradient{rows, width, eps, x, weight, dy, normed, result});
    Index block = 64;  // the smallest power of two >= 64 whose square reaches `rows`
    while (block * block < rows) block *= 2;
    for_each(context_, width, LayerNormWeights{rows, width, block, normed, dy, d_weight, d_bias});
    context_.memory().copy(dx, result, static_cast<std::size_t>(rows * width) * sizeof(float));
  }
  void mamba_norm_forward(Index rows, Index width, float eps, const float* x, const float* weight, float* y,
                          float* sumsq) override {
    launch(context_, lane_grid(rows), kLaneThreads, mamba_norm, rows, width, eps, x, weight, y, sumsq);
  }
  void mamba_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight, const float* sumsq,
                           const float* dy, const float* residual_gradient, float* dx, float* d_weight) override {
    root_backward<RootNorm::mamba3>({rows, width, eps, x, weight, sumsq, dy, residual_gradient, dx, nullptr, nullptr},
                                    d_weight);
  }
  void mamba12_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                             const float* sumsq, const float* dy, const float* residual_gradient, float* dx,
                             float* d_weight, float* dot) override {
    root_backward<RootNorm::mamba12>({rows, width, eps, x, weight, sumsq, dy, residual_gradient, dx, nullptr, dot},
                                     d_weight);
  }

 private:
  static Grid chain_grid(Index rows) { return Grid{static_cast<unsigned>((rows + kChainRows - 1) / kChainRows)}; }
  static Grid lane_grid(Index rows) {
    constexpr Index kRows = kLaneThreads / kLanes;
    return Grid{static_cast<unsigned>((rows + kRows - 1) / kRows)};
  }

  template <RootNorm kForm>
  void root_backward(RootNormGradient g, float* d_weight) {
    const Workspace::Scope scope(context_.workspace());
    g.weight_rows = context_.workspace().floats(g.rows * g.width);
    launch(context_, chain_grid(g.rows), kChainThreads, root_norm_backward<kForm>, g);
    launch_column_sum(context_, g.rows, g.width, g.weight_rows, d_weight);
  }

  Context& context_;
};

}  // namespace

std::unique_ptr<NormKernels> make_norm(Context& context) { return std::make_unique<NormGpu>(context); }

}  // namespace samba::SAMBA_GPU
