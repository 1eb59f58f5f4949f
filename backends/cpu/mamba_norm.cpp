#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba_norm.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>

#include "samba/backends/cpu/norm.h"
#include "samba/backends/cpu/norm_rows-inl.h"

// The norms inside the Mamba blocks: y = weight * (x * rstd), the squares of a row folded in 32 lanes.
HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

using Lanes = SimdLanes<hn::ScalableTag<float>>;

void mamba_rows(const NormRows& n, Index first, Index end) {
  over_row_groups(first, end, [&](auto d, Index row, Index rows) HWY_ATTR {
    HWY_ALIGN float sums[hn::MaxLanes(d)] = {};
    for (Index r = 0; r < rows; ++r) {
      const float* x = n.x + (row + r) * n.width;
      HWY_ALIGN float lanes[kFoldLanes];
      fold_32_lanes(n.width, lanes, [&](auto acc, auto io, Index j) HWY_ATTR {
        const auto v = flush_operand(io.d, io.load(x + j));
        return fused(io.d, v, v, acc);
      });
      sums[r] = meet_neighbours(lanes);
    }
    if (n.sumsq != nullptr) std::copy_n(sums, rows, n.sumsq + row);
    const RowValues rstd(d, reciprocal_root(d, hn::Load(d, sums), n.width, n.eps));
    const Lanes l{};
    for (Index r = 0; r < rows; ++r) {
      const Index begin = (row + r) * n.width;
      const auto root = l.set(rstd.at[r]);
      over_vectors(l.d, 0, n.width, [&](auto io, Index j) HWY_ATTR {
        const auto inner = l.flush(l.mul(l.flush(io.load(n.x + begin + j)), root));
        io.store(l.mul(l.flush(io.load(n.weight + j)), inner), n.y + begin + j);
      });
    }
  });
}

void mamba_backward_rows(const NormGradientRows& g, Index first, Index end) {
  over_row_groups(first, end, [&](auto d, Index row, Index rows) HWY_ATTR {
    const SimdLanes<decltype(d)> k{};
    const Index at = row * g.width;
    HWY_ALIGN float sums[hn::MaxLanes(d)] = {};
    std::copy_n(g.sumsq + row, rows, sums);
    const auto root = reciprocal_root(d, k.flush(hn::Load(d, sums)), g.width, g.eps);
    const auto dot = serial_product(d, g.dy + at, g.x + at, g.weight, g.width, rows);
    const auto share = elementary::divide(k, dot, k.set(static_cast<float>(g.width)));
    const RowValues corrections(d, k.mul(k.flush(k.mul(root, root)), share)), roots(d, root);
    const Lanes l{};
    for (Index r = 0; r < rows; ++r) {
      const Index begin = at + r * g.width;
      const auto rstd = l.set(roots.at[r]), correction = l.set(corrections.at[r]);
      over_vectors(l.d, 0, g.width, [&](auto io, Index j) HWY_ATTR {
        const auto x = l.flush(io.load(g.x + begin + j)), dy = l.flush(io.load(g.dy + begin + j));
        const auto gradient = l.flush(l.mul(dy, l.flush(io.load(g.weight + j))));
        const auto inner = l.flush(l.sub(gradient, l.flush(l.mul(x, correction))));
        const auto residual = l.flush(io.load(g.residual_gradient + begin + j));
        io.store(l.mul(dy, l.flush(l.mul(x, rstd))), g.weight_rows + begin + j);
        io.store(l.add(l.flush(l.mul(rstd, inner)), residual), g.dx + begin + j);
      });
    }
  });
}

void mamba12_backward_rows(const NormGradientRows& g, Index first, Index end) {
  over_row_groups(first, end, [&](auto d, Index row, Index rows) HWY_ATTR {
    const SimdLanes<decltype(d)> k{};
    const Index at = row * g.width;
    HWY_ALIGN float sums[hn::MaxLanes(d)] = {};
    std::copy_n(g.sumsq + row, rows, sums);
    const auto root = reciprocal_root(d, k.flush(hn::Load(d, sums)), g.width, g.eps);
    const auto cube = k.flush(k.mul(k.flush(k.mul(root, root)), root));
    const RowValues dots(d, serial_product(d, g.dy + at, g.x + at, g.weight, g.width, rows)), roots(d, root);
    const RowValues shares(d, elementary::divide(k, cube, k.set(static_cast<float>(g.width))));
    if (g.dot != nullptr) std::copy_n(dots.at, rows, g.dot + row);
    const Lanes l{};
    for (Index r = 0; r < rows; ++r) {
      const Index begin = at + r * g.width;
      const auto rstd = l.set(roots.at[r]), share = l.set(shares.at[r]), c = l.set(dots.at[r]);
      over_vectors(l.d, 0, g.width, [&](auto io, Index j) HWY_ATTR {
        const auto x = l.flush(io.load(g.x + begin + j)), dy = l.flush(io.load(g.dy + begin + j));
        const auto gradient = l.flush(l.mul(dy, l.flush(io.load(g.weight + j))));
        const auto along = l.flush(l.mul(l.flush(l.mul(share, x)), c));
        auto dv = l.flush(l.sub(l.flush(l.mul(rstd, gradient)), along));
        if (g.residual_gradient != nullptr) dv = l.add(l.flush(io.load(g.residual_gradient + begin + j)), dv);
        io.store(l.mul(dy, l.flush(l.mul(x, rstd))), g.weight_rows + begin + j);
        io.store(dv, g.dx + begin + j);
      });
    }
  });
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {

HWY_EXPORT(mamba_rows);
HWY_EXPORT(mamba_backward_rows);
HWY_EXPORT(mamba12_backward_rows);

}  // namespace

void NormCpu::mamba_norm_forward(Index rows, Index width, float eps, const float* x, const float* weight, float* y,
                                 float* sumsq) {
  const auto run = SAMBA_CPU_KERNEL(context_, mamba_rows);
  const Epsilon e = epsilon(eps);
  context_.parallel(rows, row_grain(width), [&](Index first, Index end, int) {
    run({width, e, x, weight, nullptr, y, sumsq, nullptr, false}, first, end);
  });
}

void NormCpu::mamba_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                                  const float* sumsq, const float* dy, const float* residual_gradient, float* dx,
                                  float* d_weight) {
  const auto run = SAMBA_CPU_KERNEL(context_, mamba_backward_rows);
  const Epsilon e = epsilon(eps);
  float* weight_rows = row_scratch(rows * width);
  context_.parallel(rows, row_grain(width), [&](Index first, Index end, int) {
    run({width, e, x, weight, dy, sumsq, residual_gradient, dx, weight_rows, nullptr}, first, end);
  });
  linear_.column_sum(rows, width, weight_rows, d_weight);
}

void NormCpu::mamba12_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                                    const float* sumsq, const float* dy, const float* residual_gradient, float* dx,
                                    float* d_weight, float* dot) {
  const auto run = SAMBA_CPU_KERNEL(context_, mamba12_backward_rows);
  const Epsilon e = epsilon(eps);
  float* weight_rows = row_scratch(rows * width);
  context_.parallel(rows, row_grain(width), [&](Index first, Index end, int) {
    run({width, e, x, weight, dy, sumsq, residual_gradient, dx, weight_rows, dot}, first, end);
  });
  linear_.column_sum(rows, width, weight_rows, d_weight);
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
