#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/norm.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/norm.h"

#include <algorithm>

#include "samba/backends/cpu/norm_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

using Tag = hn::ScalableTag<float>;
using Lanes = SimdLanes<Tag>;

void rms_rows(const NormRows& n, Index first, Index end) {
  over_row_groups(first, end, [&](auto d, Index row, Index rows) HWY_ATTR {
    const auto squares = serial_squares(d, n.x + row * n.width, n.width, rows);
    const RowValues sumsq(d, squares), rstd(d, reciprocal_root(d, squares, n.width, n.eps));
    if (n.sumsq != nullptr) std::copy_n(sumsq.at, rows, n.sumsq + row);
    if (n.rstd != nullptr) std::copy_n(rstd.at, rows, n.rstd + row);
    const Lanes l{};
    const auto one = l.set(1.0F);
    for (Index r = 0; r < rows; ++r) {
      const float* x = n.x + (row + r) * n.width;
      float* y = n.y + (row + r) * n.width;
      const auto root = l.set(rstd.at[r]);
      over_vectors(l.d, 0, n.width, [&](auto io, Index j) HWY_ATTR {
        auto w = l.flush(io.load(n.weight + j));
        if (n.offset) w = l.flush(l.add(one, w));
        io.store(l.mul(w, l.flush(l.mul(l.flush(io.load(x + j)), root))), y + j);
      });
    }
  });
}

void rms_backward_rows(const NormGradientRows& g, Index first, Index end) {
  over_row_groups(first, end, [&](auto d, Index row, Index rows) HWY_ATTR {
    const SimdLanes<decltype(d)> k{};
    const Index at = row * g.width;
    const auto root = reciprocal_root(d, serial_squares(d, g.x + at, g.width, rows), g.width, g.eps);
    const auto c = serial_product(d, g.dy + at, g.x + at, g.weight, g.width, rows);
    const auto cube = k.flush(k.mul(k.flush(k.mul(root, root)), root));
    const auto da = k.flush(k.mul(k.set(-0.5F), k.flush(k.mul(c, cube))));
    const RowValues dots(d, c), roots(d, root);
    const RowValues dvs(d, elementary::divide(k, da, k.set(static_cast<float>(g.width))));
    if (g.dot != nullptr) std::copy_n(dots.at, rows, g.dot + row);
    const Lanes l{};
    const auto two = l.set(2.0F);
    for (Index r = 0; r < rows; ++r) {
      const Index begin = at + r * g.width;
      const auto rstd = l.set(roots.at[r]), dv = l.set(dvs.at[r]);
      over_vectors(l.d, 0, g.width, [&](auto io, Index j) HWY_ATTR {
        const auto x = l.flush(io.load(g.x + begin + j)), dy = l.flush(io.load(g.dy + begin + j));
        const auto dh = l.flush(l.mul(dy, l.flush(io.load(g.weight + j))));
        const auto d2 = l.flush(l.mul(dv, l.flush(l.mul(two, x))));
        io.store(l.mul(dy, l.flush(l.mul(x, rstd))), g.weight_rows + begin + j);
        io.store(l.add(l.flush(l.mul(dh, rstd)), d2), g.dx + begin + j);
      });
    }
  });
}

// y = the normalised row with weight and bias where there are any.
HWY_INLINE void layer_norm_output(const NormRows& n, Index row, float mean, float rstd) {
  const Lanes l{};
  const auto m = l.set(mean), root = l.set(rstd);
  const float* x = n.x + row * n.width;
  float* y = n.y + row * n.width;
  over_vectors(l.d, 0, n.width, [&](auto io, Index j) HWY_ATTR {
    auto v = l.flush(l.mul(l.flush(l.sub(l.flush(io.load(x + j)), m)), root));
    if (n.weight != nullptr) v = l.flush(l.mul(l.flush(io.load(n.weight + j)), v));
    if (n.bias != nullptr) v = l.add(v, l.flush(io.load(n.bias + j)));
    io.store(v, y + j);
  });
}

// The mean of each of `rows` rows, a serial sum.
template <class D>
HWY_INLINE hn::Vec<D> row_mean(D d, const float* x, Index width, Index rows) {
  const SimdLanes<D> k{d, {}};
  const auto sum = fold_columns<1>(d, {x}, width, rows, 0, width, hn::Zero(d),
                                   [&](auto acc, Index, const auto(&v)[1])
                                       HWY_ATTR { return flush_operand(d, hn::Add(acc, v[0])); });
  return elementary::divide(k, sum, k.set(static_cast<float>(width)));
}

// The serial chain of squared deviations.
template <class D>
HWY_INLINE hn::Vec<D> row_deviations(D d, const float* x, hn::Vec<D> mean, Index width, Index rows) {
  return fold_columns<1>(d, {x}, width, rows, 0, width, hn::Zero(d), [&](auto acc, Index, const auto(&v)[1]) HWY_ATTR {
    const auto deviation = flush_operand(d, hn::Sub(v[0], mean));
    return flush_operand(d, fused(d, deviation, deviation, acc));
  });
}

void block_layer_norm_rows(const NormRows& n, Index first, Index end) {
  over_row_groups(first, end, [&](auto d, Index row, Index rows) HWY_ATTR {
    const float* x = n.x + row * n.width;
    const auto mean = row_mean(d, x, n.width, rows);
    const auto squares = row_deviations(d, x, mean, n.width, rows);
    const RowValues means(d, mean), sumsq(d, squares), rstd(d, reciprocal_root(d, squares, n.width, n.eps));
    if (n.sumsq != nullptr) std::copy_n(sumsq.at, rows, n.sumsq + row);
    for (Index r = 0; r < rows; ++r) layer_norm_output(n, row + r, means.at[r], rstd.at[r]);
  });
}

// The gradient of block_layer_norm_rows (docs/spec-extensions.md section 1.3).
void block_layer_norm_backward_rows(const NormGradientRows& g, Index first, Index end) {
  over_row_groups(first, end, [&](auto d, Index row, Index rows) HWY_ATTR {
    const SimdLanes<decltype(d)> k{};
    const float* x = g.x + row * g.width;
    const float* dy = g.dy + row * g.width;
    const auto width = k.set(static_cast<float>(g.width));
    const auto mean = row_mean(d, x, g.width, rows);
    const auto root = reciprocal_root(d, row_deviations(d, x, mean, g.width, rows), g.width, g.eps);
    const auto gradient_at = [&](auto upstream, Index j) HWY_ATTR {
      return flush_operand(d, hn::Mul(upstream, flush_operand(d, hn::Set(d, g.weight[j]))));
    };
    const auto sum = fold_columns<1>(d, {dy}, g.width, rows, 0, g.width, hn::Zero(d),
                                     [&](auto acc, Index j, const auto(&v)[1])
                                         HWY_ATTR { return flush_operand(d, hn::Add(acc, gradient_at(v[0], j))); });
    const auto product = fold_columns<2>(
        d, {dy, x}, g.width, rows, 0, g.width, hn::Zero(d), [&](auto acc, Index j, const auto(&v)[2]) HWY_ATTR {
          const auto normed = flush_operand(d, hn::Mul(flush_operand(d, hn::Sub(v[1], mean)), root));
          return flush_operand(d, fused(d, gradient_at(v[0], j), normed, acc));
        });
    const RowValues means(d, mean), roots(d, root), mean_gradients(d, elementary::divide(k, sum, width)),
        mean_products(d, elementary::divide(k, product, width));
    const Lanes l{};
    for (Index r = 0; r < rows; ++r) {
      const Index begin = (row + r) * g.width;
      const auto m = l.set(means.at[r]), rstd = l.set(roots.at[r]);
      const auto mean_gradient = l.set(mean_gradients.at[r]), mean_product = l.set(mean_products.at[r]);
      over_vectors(l.d, 0, g.width, [&](auto io, Index j) HWY_ATTR {
        const auto normed = l.flush(l.mul(l.flush(l.sub(l.flush(io.load(g.x + begin + j)), m)), rstd));
        const auto upstream = l.flush(io.load(g.dy + begin + j));
        const auto gradient = l.flush(l.mul(upstream, l.flush(io.load(g.weight + j))));
        const auto across = l.flush(l.sub(gradient, mean_gradient));
        io.store(l.mul(upstream, normed), g.weight_rows + begin + j);
        io.store(l.mul(rstd, l.flush(l.sub(across, l.flush(l.mul(normed, mean_product))))), g.dx + begin + j);
      });
    }
  });
}

// sums[row] = the serial sum over the heads of a row.
void sum_heads(const HeadSums& s, Index first, Index end) {
  const Lanes l{};
  for (Index row = first; row < end; ++row) {
    const float* of_row = s.of_heads + row * s.heads * s.width;
    over_vectors(l.d, 0, s.width, [&](auto io, Index j) HWY_ATTR {
      auto sum = l.set(0.0F);
      for (Index h = 0; h < s.heads; ++h) sum = l.flush(l.add(sum, l.flush(io.load(of_row + h * s.width + j))));
      io.store(sum, s.sums + row * s.width + j);
    });
  }
}

struct RowMoments {
  float mean, rstd;
};

HWY_INLINE RowMoments lane_moments(const float* x, Index width, const Epsilon& eps) {
  HWY_ALIGN float lanes[kFoldLanes];
  fold_32_lanes(width, lanes,
                [&](auto acc, auto io, Index j) HWY_ATTR { return hn::Add(acc, flush_operand(io.d, io.load(x + j))); });
  const float mean = samba::div(meet_halves(lanes), static_cast<float>(width));
  fold_32_lanes(width, lanes, [&](auto acc, auto io, Index j) HWY_ATTR {
    const auto deviation = flush_operand(io.d, hn::Sub(flush_operand(io.d, io.load(x + j)), hn::Set(io.d, mean)));
    return fused(io.d, deviation, deviation, acc);
  });
  const hn::CappedTag<float, 1> single;
  const auto root = reciprocal_root(single, hn::Set(single, meet_halves(lanes)), width, eps);
  return {mean, RowValues(single, root).at[0]};
}

void layer_norm_rows(const NormRows& n, Index first, Index end) {
  for (Index row = first; row < end; ++row) {
    const RowMoments moments = lane_moments(n.x + row * n.width, n.width, n.eps);
    layer_norm_output(n, row, moments.mean, moments.rstd);
  }
}

// dx, and the normalised rows in weight_rows.
void layer_norm_backward_rows(const NormGradientRows& g, Index first, Index end) {
  const Lanes l{};
  for (Index row = first; row < end; ++row) {
    const float* dy = g.dy + row * g.width;
    float* normed = g.weight_rows + row * g.width;
    const RowMoments moments = lane_moments(g.x + row * g.width, g.width, g.eps);
    const NormRows plain{g.width, g.eps, g.x, nullptr, nullptr, g.weight_rows, nullptr, nullptr, false};
    layer_norm_output(plain, row, moments.mean, moments.rstd);
    const auto gradient = [&](auto io, Index j) HWY_ATTR {
      const auto upstream = flush_operand(io.d, io.load(dy + j));
      if (g.weight == nullptr) return upstream;
      return flush_operand(io.d, hn::Mul(upstream, flush_operand(io.d, io.load(g.weight + j))));
    };
    HWY_ALIGN float lanes[kFoldLanes];
    fold_32_lanes(g.width, lanes, [&](auto acc, auto io, Index j) HWY_ATTR { return hn::Add(acc, gradient(io, j)); });
    const auto mean_gradient = l.set(samba::div(meet_halves(lanes), static_cast<float>(g.width)));
    fold_32_lanes(g.width, lanes, [&](auto acc, auto io, Index j) HWY_ATTR {
      return fused(io.d, gradient(io, j), io.load(normed + j), acc);
    });
    const auto mean_product = l.set(samba::div(meet_halves(lanes), static_cast<float>(g.width)));
    const auto root = l.set(moments.rstd);
    over_vectors(l.d, 0, g.width, [&](auto io, Index j) HWY_ATTR {
      const auto along = l.flush(l.mul(io.load(normed + j), mean_product));
      const auto across = l.flush(l.sub(gradient(io, j), mean_gradient));
      io.store(l.mul(root, l.flush(l.sub(across, along))), g.dx + row * g.width + j);
    });
  }
}

// Rows in blocks: serial in each block, then the blocks serially; a single block is used as it is.
template <class Step>
HWY_INLINE Lanes::F fold_row_blocks(const LayerNormWeights& g, Step&& step) {
  const Lanes l{};
  auto total = l.set(0.0F);
  for (Index first = 0; first < g.rows; first += g.block) {
    auto acc = l.set(0.0F);
    for (Index row = first; row < std::min(g.rows, first + g.block); ++row) acc = l.flush(step(acc, row));
    total = g.rows <= g.block ? acc : l.flush(l.add(total, acc));
  }
  return total;
}

void layer_norm_weight_columns(const LayerNormWeights& g, Index first, Index end) {
  const Lanes l{};
  over_vectors(l.d, first, end, [&](auto io, Index j) HWY_ATTR {
    const auto dy = [&](Index row) HWY_ATTR { return l.flush(io.load(g.dy + row * g.width + j)); };
    if (g.d_weight != nullptr) {
      const auto sum = fold_row_blocks(g, [&](Lanes::F acc, Index row) HWY_ATTR {
        return l.fma(dy(row), io.load(g.normed + row * g.width + j), acc);
      });
      io.store(sum, g.d_weight + j);
    }
    if (g.d_bias != nullptr) {
      const auto sum = fold_row_blocks(g, [&](Lanes::F acc, Index row) HWY_ATTR { return l.add(acc, dy(row)); });
      io.store(sum, g.d_bias + j);
    }
  });
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {

HWY_EXPORT(rms_rows);
HWY_EXPORT(rms_backward_rows);
HWY_EXPORT(block_layer_norm_rows);
HWY_EXPORT(block_layer_norm_backward_rows);
HWY_EXPORT(sum_heads);
HWY_EXPORT(layer_norm_rows);
HWY_EXPORT(layer_norm_backward_rows);
HWY_EXPORT(layer_norm_weight_columns);

constexpr Index kColumnUnit = 64;

// The smallest power of two >= 64 whose square reaches `rows` (spec 10 section 7.2).
Index gradient_block(Index rows) {
  Index block = 64;
  while (block * block < rows) block *= 2;
  return block;
}

}  // namespace

float* NormCpu::row_scratch(Index count) {
  if (scratch_.size() < count) scratch_ = DeviceArray<float>(memory_, count);
  return scratch_.data();
}

void NormCpu::rms_norm_forward(Index rows, Index width, float eps, bool offset, const float* x, const float* weight,
                               float* y, float* sumsq, float* rstd) {
  const auto run = SAMBA_CPU_KERNEL(context_, rms_rows);
  const Epsilon e = epsilon(eps);
  context_.parallel(rows, row_grain(width), [&](Index first, Index end, int) {
    run({width, e, x, weight, nullptr, y, sumsq, rstd, offset}, first, end);
  });
}

void NormCpu::rms_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                                const float* dy, float* dx, float* d_weight, float* dot) {
  const auto run = SAMBA_CPU_KERNEL(context_, rms_backward_rows);
  const Epsilon e = epsilon(eps);
  float* weight_rows = row_scratch(rows * width);
  context_.parallel(rows, row_grain(width), [&](Index first, Index end, int) {
    run({width, e, x, weight, dy, nullptr, nullptr, dx, weight_rows, dot}, first, end);
  });
  linear_.column_sum(rows, width, weight_rows, d_weight);
}

void NormCpu::rms_norm_heads_backward(Index rows, Index heads, Index width, float eps, bool offset, const float* x,
                                      const float* weight, const float* dy, float* dx, float* d_weight) {
  const auto run = SAMBA_CPU_KERNEL(context_, rms_backward_rows);
  const auto fold = SAMBA_CPU_KERNEL(context_, sum_heads);
  const Epsilon e = epsilon(eps);
  const Index cells = rows * heads * width;
  float* weight_rows = row_scratch(cells + rows * width + width);
  float* sums = weight_rows + cells;
  float* scale = sums + rows * width;
  for (Index j = 0; j < width; ++j) scale[j] = offset ? samba::add(1.0F, weight[j]) : weight[j];
  context_.parallel(rows * heads, row_grain(width), [&](Index first, Index end, int) {
    run({width, e, x, scale, dy, nullptr, nullptr, dx, weight_rows, nullptr}, first, end);
  });
  if (heads == 1) return linear_.column_sum(rows, width, weight_rows, d_weight);
  context_.parallel(rows, row_grain(heads * width), [&](Index first, Index end, int) {
    fold({heads, width, weight_rows, sums}, first, end);
  });
  linear_.column_sum(rows, width, sums, d_weight);
}

void NormCpu::layer_norm_block(Index rows, Index width, float eps, const float* x, const float* weight,
                               const float* bias, float* y, float* sumsq) {
  const auto run = SAMBA_CPU_KERNEL(context_, block_layer_norm_rows);
  const Epsilon e = epsilon(eps);
  context_.parallel(rows, row_grain(width), [&](Index first, Index end, int) {
    run({width, e, x, weight, bias, y, sumsq, nullptr, false}, first, end);
  });
}

void NormCpu::layer_norm_block_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                                        const float* dy, float* dx, float* d_weight, float* d_bias) {
  const auto run = SAMBA_CPU_KERNEL(context_, block_layer_norm_backward_rows);
  const Epsilon e = epsilon(eps);
  if (d_bias != nullptr) linear_.column_sum(rows, width, dy, d_bias);
  float* weight_rows = row_scratch(rows * width);
  context_.parallel(rows, row_grain(width), [&](Index first, Index end, int) {
    run({width, e, x, weight, dy, nullptr, nullptr, dx, weight_rows, nullptr}, first, end);
  });
  linear_.column_sum(rows, width, weight_rows, d_weight);
}

void NormCpu::layer_norm_forward(Index rows, Index width, float eps, const float* x, const float* weight,
                                 const float* bias, float* y) {
  const auto run = SAMBA_CPU_KERNEL(context_, layer_norm_rows);
  const Epsilon e = epsilon(eps);
  context_.parallel(rows, row_grain(width), [&](Index first, Index end, int) {
    run({width, e, x, weight, bias, y, nullptr, nullptr, false}, first, end);
  });
}

void NormCpu::layer_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                                  const float* dy, float* dx, float* d_weight, float* d_bias) {
  const auto run = SAMBA_CPU_KERNEL(context_, layer_norm_backward_rows);
  const auto fold = SAMBA_CPU_KERNEL(context_, layer_norm_weight_columns);
  const Epsilon e = epsilon(eps);
  float* normed = row_scratch(rows * width);
  context_.parallel(rows, row_grain(width), [&](Index first, Index end, int) {
    run({width, e, x, weight, dy, nullptr, nullptr, dx, normed, nullptr}, first, end);
  });
  context_.parallel(width, kColumnUnit, [&](Index first, Index end, int) {
    fold({rows, width, gradient_block(rows), normed, dy, d_weight, d_bias}, first, end);
  });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
