// Norms: those of serial sums (norm_chains.gpu.h), and those of sums in 32 lanes: one group of 32 threads a row, and a
// tree of shuffles.
#pragma once

#include "samba/backends/gpu/norm_chains.gpu.h"
#include "samba/kernels/extended_gradients.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr int kLanes = 32;
inline constexpr int kLaneThreads = 128;

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

// scale = 1 + w, flushed
struct OffsetWeight {
  const float* weight;
  float* scale;
  SAMBA_DEVICE void operator()(Index j) const { scale[j] = add(1.0F, weight[j]); }
};

// rows[i, j] = the serial sum over the heads of head_rows[i, head, j].
struct SumHeads {
  Index heads, width;
  const float* head_rows;
  float* rows;
  SAMBA_DEVICE void operator()(Index index) const {
    const Index i = index / width, j = index % width;
    float sum = 0.0F;
    for (Index h = 0; h < heads; ++h) sum = add(sum, head_rows[(i * heads + h) * width + j]);
    rows[index] = sum;
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

class NormGpu final : public NormKernels, public NormGradients {
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
  void rms_norm_heads_backward(Index rows, Index heads, Index width, float eps, bool offset, const float* x,
                               const float* weight, const float* dy, float* dx, float* d_weight) override {
    const Workspace::Scope scope(context_.workspace());
    if (offset) {
      float* scale = context_.workspace().floats(width);
      for_each(context_, width, OffsetWeight{weight, scale});
      weight = scale;
    }
    float* head_rows = context_.workspace().floats(rows * heads * width);
    launch(context_, chain_grid(rows * heads), kChainThreads, root_norm_backward<RootNorm::rms>,
           RootNormGradient{rows * heads, width, eps, x, weight, nullptr, dy, nullptr, dx, head_rows, nullptr});
    if (heads == 1) return launch_column_sum(context_, rows, width, head_rows, d_weight);
    float* sums = context_.workspace().floats(rows * width);
    for_each(context_, rows * width, SumHeads{heads, width, head_rows, sums});
    launch_column_sum(context_, rows, width, sums, d_weight);
  }
  void layer_norm_block_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                                 const float* dy, float* dx, float* d_weight, float* d_bias) override {
    if (d_bias != nullptr) launch_column_sum(context_, rows, width, dy, d_bias);
    const Workspace::Scope scope(context_.workspace());
    float* weight_rows = context_.workspace().floats(rows * width);
    launch(context_, chain_grid(rows), kChainThreads, block_layer_norm_backward,
           BlockLayerNormGradient{rows, width, eps, x, weight, dy, dx, weight_rows});
    launch_column_sum(context_, rows, width, weight_rows, d_weight);
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
