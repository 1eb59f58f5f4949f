// What linear layers need beside the products: column sums, dots, biases, expanded weights.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/linear_sums.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include <algorithm>
#include <array>

#include "samba/backends/cpu/linear.h"
#include "samba/backends/cpu/packed_cells-inl.h"
#include "samba/backends/cpu/vectors-inl.h"
#include "samba/numerics/fold.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

void expand_matrix(const ConstPackedWeight& packed, float* values) { expand_rows<false>(packed, values); }

void add_bias_rows(Index first_row, Index end_row, Index n, const float* HWY_RESTRICT bias, float* HWY_RESTRICT y) {
  const hn::ScalableTag<float> d;
  const Index lanes = static_cast<Index>(hn::Lanes(d));
  for (Index row = first_row; row < end_row; ++row) {
    float* cells = y + row * n;
    Index j = 0;
    for (; j + lanes <= n; j += lanes) {
      const auto total = hn::Add(flush_operand(d, hn::LoadU(d, cells + j)), flush_operand(d, hn::LoadU(d, bias + j)));
      hn::StoreU(flush_store(d, total), d, cells + j);
    }
    for (; j < n; ++j) cells[j] = samba::add(cells[j], bias[j]);
  }
}

// Column sums of a strip of `columns` <= lanes columns.
template <class D>
HWY_INLINE void column_sum_strip(D d, Index rows, Index width, const float* v, Index columns, float* out) {
  const auto mask = hn::FirstN(d, static_cast<std::size_t>(columns));
  const bool whole = columns == static_cast<Index>(hn::Lanes(d));
  hn::Vec<D> waiting[kMaxTreeDepth + 1];
  const Index leaf_size = leaf_length(rows);
  const Index leaves = leaf_count(rows);
  for (Index leaf = 0; leaf < leaves; ++leaf) {
    auto acc = hn::Zero(d);
    const Index end = std::min(rows, (leaf + 1) * leaf_size);
    for (Index row = leaf * leaf_size; row < end; ++row) {
      const auto cells = whole ? hn::LoadU(d, v + row * width) : hn::MaskedLoad(mask, d, v + row * width);
      acc = flush_operand(d, hn::Add(acc, flush_operand(d, cells)));
    }
    const bool last = leaf + 1 == leaves;
    Index level = 0;
    for (Index rest = leaf; rest != 0; rest >>= 1, ++level) {
      if ((rest & 1) != 0) {
        acc = flush_operand(d, hn::Add(waiting[level], acc));
      } else if (!last) {
        break;
      }
    }
    if (!last) {
      waiting[level] = acc;
    } else if (whole) {
      hn::StoreU(flush_store(d, acc), d, out);
    } else {
      hn::BlendedStore(flush_store(d, acc), mask, d, out);
    }
  }
}

void column_sums(Index rows, Index width, const float* v, Index first, Index end, float* out) {
  const hn::ScalableTag<float> d;
  const Index lanes = static_cast<Index>(hn::Lanes(d));
  for (Index j = first; j < end; j += lanes) {
    column_sum_strip(d, rows, width, v + j, std::min(lanes, end - j), out + j);
  }
}

// partials[t] for the leaves [first, end) of dot(a, b), b null meaning ones: kSide leaves side by side.
void dot_leaves(Index n, const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, Index first, Index end,
                float* partials) {
  constexpr int kSide = 8;
  const Index leaf_size = leaf_length(n);
  Index t = first;
  for (; t + kSide <= end && (t + kSide) * leaf_size <= n; t += kSide) {
    float acc[kSide] = {};
    const Index base = t * leaf_size;
    for (Index p = 0; p < leaf_size; ++p) {
#pragma GCC unroll 8
      for (int s = 0; s < kSide; ++s) {
        const Index at = base + s * leaf_size + p;
        acc[s] = mad(a[at], b == nullptr ? 1.0F : b[at], acc[s]);
      }
    }
    std::copy_n(acc, kSide, partials + t);
  }
  for (; t < end; ++t) {
    float acc = 0.0F;
    const Index last = std::min(n, (t + 1) * leaf_size);
    for (Index p = t * leaf_size; p < last; ++p) acc = mad(a[p], b == nullptr ? 1.0F : b[p], acc);
    partials[t] = acc;
  }
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {

HWY_EXPORT(expand_matrix);
HWY_EXPORT(add_bias_rows);
HWY_EXPORT(column_sums);
HWY_EXPORT(dot_leaves);

constexpr Index kSmallExpansion = 32 * 1024;  // cells below which one thread expands faster than a team

// Partials of all leaves, folded.
float fold_leaves(Context& context, Index n, const float* a, const float* b) {
  const auto run = SAMBA_CPU_KERNEL(context, dot_leaves);
  const Index leaves = leaf_count(n);
  std::array<float, kMaxLeaves> partials;
  context.parallel(leaves, 64, [&](Index first, Index end, int) { run(n, a, b, first, end, partials.data()); });
  TreeFold tree;
  for (Index t = 0; t < leaves; ++t) tree.push(partials[static_cast<std::size_t>(t)]);
  return tree.finish();
}

}  // namespace

void LinearCpu::expand(const ConstPackedWeight& packed, float* values) {
  const auto run = SAMBA_CPU_KERNEL(context_, expand_matrix);
  context_.parallel(
      packed.rows, std::max<Index>(1, kSmallExpansion / packed.columns),
      [&](Index first, Index end, int) { run(packed_rows(packed, first, end), values + first * packed.columns); });
}

void LinearCpu::add_bias(Index m, Index n, const float* bias, float* y) {
  const auto run = SAMBA_CPU_KERNEL(context_, add_bias_rows);
  context_.parallel(m, 16, [&](Index first, Index end, int) { run(first, end, n, bias, y); });
}

void LinearCpu::column_sum(Index rows, Index width, const float* v, float* out) {
  const auto run = SAMBA_CPU_KERNEL(context_, column_sums);
  context_.parallel(width, 64, [&](Index first, Index end, int) { run(rows, width, v, first, end, out); });
}

float LinearCpu::dot(Index n, const float* a, const float* b) { return fold_leaves(context_, n, a, b); }

float LinearCpu::sum(Index n, const float* x) { return fold_leaves(context_, n, x, nullptr); }

}  // namespace samba::cpu
#endif  // HWY_ONCE
