#include "samba/backends/reference/norm.h"

#include <algorithm>
#include <vector>

#include "samba/backends/reference/clones.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/fold.h"

namespace samba::reference {

namespace {

constexpr Index kLanes = 32;

inline float reciprocal_root(float sum, Index width, float eps) {
  return flush(elementary::rsqrt(flush(div(sum, static_cast<float>(width)) + eps)));
}

SAMBA_FMA_CLONES float serial_squares(Index n, const float* x) {
  float sum = 0.0F;
  for (Index j = 0; j < n; ++j) sum = mad(x[j], x[j], sum);
  return sum;
}

// lanes[l] = the serial fold of term(j, acc) over j = l, l + 32, ...
template <class Term>
inline void fold_lanes(Index n, float* lanes, Term&& term) {
  for (Index l = 0; l < kLanes; ++l) {
    lanes[l] = 0.0F;
    for (Index j = l; j < n; j += kLanes) lanes[l] = term(j, lanes[l]);
  }
}

// The free layer norm: halves meet, lane l with lane l + h (spec 10 section 7.2).
inline float meet_halves(float* lanes) {
  for (Index h = kLanes / 2; h >= 1; h /= 2) {
    for (Index l = 0; l < h; ++l) lanes[l] = add(lanes[l], lanes[l + h]);
  }
  return lanes[0];
}

// The Mamba norm: neighbours meet, lane 2l with lane 2l + 1 (spec 40 section 3.1).
inline float meet_neighbours(float* lanes) {
  for (Index h = kLanes / 2; h >= 1; h /= 2) {
    for (Index l = 0; l < h; ++l) lanes[l] = add(lanes[2 * l], lanes[2 * l + 1]);
  }
  return lanes[0];
}

// out[j] = the column sums of v[rows, width]: leaves of 128 rows, tree.
void column_sum(Index rows, Index width, const std::vector<float>& v, float* out) {
  for (Index j = 0; j < width; ++j) {
    out[j] = dot(
        rows, [&](Index i) { return v[static_cast<std::size_t>(i * width + j)]; }, [](Index) { return 1.0F; });
  }
}

struct RowMoments {
  float mean, squares, rstd;
};

inline RowMoments block_moments(Index width, float eps, const float* x) {
  RowMoments row{};
  float sum = 0.0F;
  for (Index j = 0; j < width; ++j) sum = add(sum, x[j]);
  row.mean = div(sum, static_cast<float>(width));
  for (Index j = 0; j < width; ++j) {
    const float deviation = sub(x[j], row.mean);
    row.squares = mad(deviation, deviation, row.squares);
  }
  row.rstd = reciprocal_root(row.squares, width, eps);
  return row;
}

inline RowMoments lane_moments(Index width, float eps, const float* x) {
  RowMoments row{};
  float lanes[kLanes];
  fold_lanes(width, lanes, [&](Index j, float acc) { return add(acc, x[j]); });
  row.mean = div(meet_halves(lanes), static_cast<float>(width));
  fold_lanes(width, lanes, [&](Index j, float acc) {
    const float deviation = sub(x[j], row.mean);
    return mad(deviation, deviation, acc);
  });
  row.squares = meet_halves(lanes);
  row.rstd = reciprocal_root(row.squares, width, eps);
  return row;
}

inline void layer_norm_output(Index width, const RowMoments& row, const float* x, const float* weight,
                              const float* bias, float* y) {
  for (Index j = 0; j < width; ++j) {
    float value = mul(sub(x[j], row.mean), row.rstd);
    if (weight != nullptr) value = mul(weight[j], value);
    if (bias != nullptr) value = add(value, bias[j]);
    y[j] = value;
  }
}

SAMBA_FMA_CLONES void block_layer_norm_row(Index width, float eps, const float* x, const float* weight,
                                           const float* bias, float* y, float* sumsq) {
  const RowMoments row = block_moments(width, eps, x);
  layer_norm_output(width, row, x, weight, bias, y);
  if (sumsq != nullptr) *sumsq = row.squares;
}

SAMBA_FMA_CLONES void layer_norm_row(Index width, float eps, const float* x, const float* weight, const float* bias,
                                     float* y) {
  layer_norm_output(width, lane_moments(width, eps, x), x, weight, bias, y);
}

// dx of one row; normed[j] = the normalised x, for the weight gradient.
SAMBA_FMA_CLONES void layer_norm_row_backward(Index width, float eps, const float* x, const float* weight,
                                              const float* dy, float* normed, float* dx) {
  const RowMoments row = lane_moments(width, eps, x);
  for (Index j = 0; j < width; ++j) normed[j] = mul(sub(x[j], row.mean), row.rstd);
  const auto gradient = [&](Index j) { return weight != nullptr ? mul(dy[j], weight[j]) : flush(dy[j]); };
  float lanes[kLanes];
  fold_lanes(width, lanes, [&](Index j, float acc) { return add(acc, gradient(j)); });
  const float mean_gradient = div(meet_halves(lanes), static_cast<float>(width));
  fold_lanes(width, lanes, [&](Index j, float acc) { return mad(gradient(j), normed[j], acc); });
  const float mean_product = div(meet_halves(lanes), static_cast<float>(width));
  for (Index j = 0; j < width; ++j) {
    dx[j] = mul(row.rstd, sub(sub(gradient(j), mean_gradient), mul(normed[j], mean_product)));
  }
}

// Rows of one block of the layer norm's weight gradient: the smallest power of two >= 64 whose square reaches `rows`.
Index gradient_block(Index rows) {
  Index block = 64;
  while (block * block < rows) block *= 2;
  return block;
}

// The fold over all rows: serial in each block of rows, then the block results serially. term(i, acc).
template <class Term>
inline float fold_row_blocks(Index rows, Term&& term) {
  const Index block = gradient_block(rows);
  float total = 0.0F;
  for (Index first = 0; first < rows; first += block) {
    float acc = 0.0F;
    for (Index i = first; i < rows && i < first + block; ++i) acc = term(i, acc);
    total = rows <= block ? acc : add(total, acc);
  }
  return total;
}

SAMBA_FMA_CLONES void layer_norm_weight_gradients(Index rows, Index width, const float* normed, const float* dy,
                                                  float* d_weight, float* d_bias) {
  for (Index j = 0; j < width; ++j) {
    if (d_weight != nullptr) {
      d_weight[j] =
          fold_row_blocks(rows, [&](Index i, float acc) { return mad(dy[i * width + j], normed[i * width + j], acc); });
    }
    if (d_bias != nullptr) {
      d_bias[j] = fold_row_blocks(rows, [&](Index i, float acc) { return add(acc, dy[i * width + j]); });
    }
  }
}

// dx of one row and its row of the weight gradient; returns the fold c (spec 10 section 6).
SAMBA_FMA_CLONES float rms_norm_row_backward(Index width, float eps, const float* x, const float* weight,
                                             const float* dy, float* dx, float* weight_row) {
  const float rstd = reciprocal_root(serial_squares(width, x), width, eps);
  float c = 0.0F;
  for (Index j = 0; j < width; ++j) c = mad(mul(dy[j], weight[j]), x[j], c);
  const float cube = mul(mul(rstd, rstd), rstd);
  const float dv = div(mul(-0.5F, mul(c, cube)), static_cast<float>(width));
  for (Index j = 0; j < width; ++j) {
    const float dh = mul(dy[j], weight[j]);
    weight_row[j] = mul(dy[j], mul(x[j], rstd));
    dx[j] = add(mul(dh, rstd), mul(dv, mul(2.0F, x[j])));
  }
  return c;
}

// The gradient of block_layer_norm_row: two serial folds over the row (docs/spec-extensions.md section 1.3).
SAMBA_FMA_CLONES void block_layer_norm_row_backward(Index width, float eps, const float* x, const float* weight,
                                                    const float* dy, float* dx, float* weight_row) {
  const RowMoments row = block_moments(width, eps, x);
  float sum = 0.0F, product = 0.0F;
  for (Index j = 0; j < width; ++j) {
    const float gradient = mul(dy[j], weight[j]);
    sum = add(sum, gradient);
    product = mad(gradient, mul(sub(x[j], row.mean), row.rstd), product);
  }
  const float mean_gradient = div(sum, static_cast<float>(width));
  const float mean_product = div(product, static_cast<float>(width));
  for (Index j = 0; j < width; ++j) {
    const float normed = mul(sub(x[j], row.mean), row.rstd);
    const float gradient = mul(dy[j], weight[j]);
    weight_row[j] = mul(dy[j], normed);
    dx[j] = mul(row.rstd, sub(sub(gradient, mean_gradient), mul(normed, mean_product)));
  }
}

SAMBA_FMA_CLONES float mamba_sum_of_squares(Index width, const float* x) {
  float lanes[kLanes];
  fold_lanes(width, lanes, [&](Index j, float acc) { return mad(x[j], x[j], acc); });
  return meet_neighbours(lanes);
}

struct MambaRow {
  Index width;
  const float *x, *weight, *dy, *residual_gradient;
  float rstd;
};

SAMBA_FMA_CLONES void mamba_norm_row_backward(const MambaRow& r, float* dx, float* weight_row) {
  float dot = 0.0F;
  for (Index j = 0; j < r.width; ++j) dot = mad(mul(r.dy[j], r.weight[j]), r.x[j], dot);
  const float correction = mul(mul(r.rstd, r.rstd), div(dot, static_cast<float>(r.width)));
  for (Index j = 0; j < r.width; ++j) {
    const float gradient = mul(r.dy[j], r.weight[j]);
    weight_row[j] = mul(r.dy[j], mul(r.x[j], r.rstd));
    dx[j] = add(mul(r.rstd, sub(gradient, mul(r.x[j], correction))), r.residual_gradient[j]);
  }
}

// RMSB of spec 32 section 2; returns the chain c.
SAMBA_FMA_CLONES float mamba12_norm_row_backward(const MambaRow& r, float* dx, float* weight_row) {
  float c = 0.0F;
  for (Index j = 0; j < r.width; ++j) c = mad(mul(r.dy[j], r.weight[j]), r.x[j], c);
  const float q = div(mul(mul(r.rstd, r.rstd), r.rstd), static_cast<float>(r.width));
  for (Index j = 0; j < r.width; ++j) {
    const float gradient = mul(r.dy[j], r.weight[j]);
    const float dv = sub(mul(r.rstd, gradient), mul(mul(q, r.x[j]), c));
    weight_row[j] = mul(r.dy[j], mul(r.x[j], r.rstd));
    dx[j] = r.residual_gradient != nullptr ? add(r.residual_gradient[j], dv) : dv;
  }
  return c;
}

std::vector<float> matrix(Index rows, Index width) {
  return std::vector<float>(static_cast<std::size_t>(rows * width));
}

}  // namespace

void NormReference::rms_norm_forward(Index rows, Index width, float eps, bool offset, const float* x,
                                     const float* weight, float* y, float* sumsq, float* rstd) {
  for (Index i = 0; i < rows; ++i) {
    const float squares = serial_squares(width, x + i * width);
    const float root = reciprocal_root(squares, width, eps);
    for (Index j = 0; j < width; ++j) {
      const float scale = offset ? add(1.0F, weight[j]) : weight[j];
      y[i * width + j] = mul(scale, mul(x[i * width + j], root));
    }
    if (sumsq != nullptr) sumsq[i] = squares;
    if (rstd != nullptr) rstd[i] = root;
  }
}

void NormReference::rms_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                                      const float* dy, float* dx, float* d_weight, float* dot) {
  std::vector<float> weight_rows = matrix(rows, width);
  for (Index i = 0; i < rows; ++i) {
    const Index at = i * width;
    const float c = rms_norm_row_backward(width, eps, x + at, weight, dy + at, dx + at, weight_rows.data() + at);
    if (dot != nullptr) dot[i] = c;
  }
  column_sum(rows, width, weight_rows, d_weight);
}

void NormReference::rms_norm_heads_backward(Index rows, Index heads, Index width, float eps, bool offset,
                                            const float* x, const float* weight, const float* dy, float* dx,
                                            float* d_weight) {
  std::vector<float> scale(weight, weight + width);
  for (float& w : scale) w = offset ? add(1.0F, w) : w;
  std::vector<float> head = matrix(1, width), weight_rows = matrix(rows, width);
  for (Index i = 0; i < rows; ++i) {
    float* sums = weight_rows.data() + i * width;
    for (Index h = 0; h < heads; ++h) {
      const Index at = (i * heads + h) * width;
      rms_norm_row_backward(width, eps, x + at, scale.data(), dy + at, dx + at, head.data());
      for (std::size_t j = 0; j < head.size(); ++j) sums[j] = heads == 1 ? head[j] : add(sums[j], head[j]);
    }
  }
  column_sum(rows, width, weight_rows, d_weight);
}

void NormReference::layer_norm_block(Index rows, Index width, float eps, const float* x, const float* weight,
                                     const float* bias, float* y, float* sumsq) {
  for (Index i = 0; i < rows; ++i) {
    block_layer_norm_row(width, eps, x + i * width, weight, bias, y + i * width,
                         sumsq != nullptr ? sumsq + i : nullptr);
  }
}

void NormReference::layer_norm_block_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                                              const float* dy, float* dx, float* d_weight, float* d_bias) {
  if (d_bias != nullptr) column_sum(rows, width, std::vector<float>(dy, dy + rows * width), d_bias);
  std::vector<float> weight_rows = matrix(rows, width);
  for (Index i = 0; i < rows; ++i) {
    const Index at = i * width;
    block_layer_norm_row_backward(width, eps, x + at, weight, dy + at, dx + at, weight_rows.data() + at);
  }
  column_sum(rows, width, weight_rows, d_weight);
}

void NormReference::layer_norm_forward(Index rows, Index width, float eps, const float* x, const float* weight,
                                       const float* bias, float* y) {
  for (Index i = 0; i < rows; ++i) layer_norm_row(width, eps, x + i * width, weight, bias, y + i * width);
}

void NormReference::layer_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                                        const float* dy, float* dx, float* d_weight, float* d_bias) {
  std::vector<float> normed = matrix(rows, width);
  std::vector<float> result = matrix(rows, width);
  for (Index i = 0; i < rows; ++i) {
    const Index at = i * width;
    layer_norm_row_backward(width, eps, x + at, weight, dy + at, normed.data() + at, result.data() + at);
  }
  layer_norm_weight_gradients(rows, width, normed.data(), dy, d_weight, d_bias);
  std::copy(result.begin(), result.end(), dx);
}

void NormReference::mamba_norm_forward(Index rows, Index width, float eps, const float* x, const float* weight,
                                       float* y, float* sumsq) {
  for (Index i = 0; i < rows; ++i) {
    const float squares = mamba_sum_of_squares(width, x + i * width);
    const float root = reciprocal_root(squares, width, eps);
    for (Index j = 0; j < width; ++j) y[i * width + j] = mul(weight[j], mul(x[i * width + j], root));
    if (sumsq != nullptr) sumsq[i] = squares;
  }
}

void NormReference::mamba_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                                        const float* sumsq, const float* dy, const float* residual_gradient, float* dx,
                                        float* d_weight) {
  std::vector<float> weight_rows = matrix(rows, width);
  for (Index i = 0; i < rows; ++i) {
    const Index at = i * width;
    const float rstd = reciprocal_root(sumsq[i], width, eps);
    mamba_norm_row_backward({width, x + at, weight, dy + at, residual_gradient + at, rstd}, dx + at,
                            weight_rows.data() + at);
  }
  column_sum(rows, width, weight_rows, d_weight);
}

void NormReference::mamba12_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                                          const float* sumsq, const float* dy, const float* residual_gradient,
                                          float* dx, float* d_weight, float* dot) {
  std::vector<float> weight_rows = matrix(rows, width);
  for (Index i = 0; i < rows; ++i) {
    const Index at = i * width;
    const float rstd = reciprocal_root(sumsq[i], width, eps);
    const float* residual = residual_gradient != nullptr ? residual_gradient + at : nullptr;
    const float c =
        mamba12_norm_row_backward({width, x + at, weight, dy + at, residual, rstd}, dx + at, weight_rows.data() + at);
    if (dot != nullptr) dot[i] = c;
  }
  column_sum(rows, width, weight_rows, d_weight);
}

}  // namespace samba::reference
