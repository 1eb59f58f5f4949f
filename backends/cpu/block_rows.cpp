#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/block_rows.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include <hwy/cache_control.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "samba/backends/cpu/block_cells-inl.h"
#include "samba/backends/cpu/block_rows.h"
#include "samba/numerics/fold.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

// Any leaf, row by row.
void expand_leaf_by_rows(const BlockLeaf& leaf, float* values) {
  const ConstPackedWeight& weight = *leaf.weight;
  const BlockLayout layout = block_layout(weight.format);
  const Index first = leaf.first / layout.values * layout.values;
  const Index end =
      std::min(weight.columns, (leaf.first + leaf.length + layout.values - 1) / layout.values * layout.values);
  std::vector<float> row(static_cast<std::size_t>(end - first));
  for (Index r = 0; r < leaf.rows; ++r) {
    const std::byte* blocks =
        weight.block_row(leaf.first_row + r) + static_cast<std::size_t>(first / layout.values) * layout.bytes;
    expand_block_row(weight.format, blocks, end - first, row.data());
    for (Index p = 0; p < leaf.length; ++p) {
      values[p * leaf.width + r] = row[static_cast<std::size_t>(leaf.first - first + p)];
    }
  }
  for (Index p = 0; p < leaf.length; ++p) {
    std::fill(values + p * leaf.width + leaf.rows, values + (p + 1) * leaf.width, 0.0F);
  }
}

#if HWY_TARGET == HWY_SCALAR

bool block_rows_in_groups() { return false; }
void expand_block_leaf(const BlockLeaf& leaf, float* values) { expand_leaf_by_rows(leaf, values); }
void multiply_block_row(const BlockRow& /*work*/) {}

#else

bool block_rows_in_groups() { return true; }

// Calls visit of the cells of the format.
template <class Visit>
void with_cells(WeightFormat format, const Visit& visit) {
  switch (format) {
    case WeightFormat::bfloat16:
      return visit.template operator()<WideCells<false> >();
    case WeightFormat::float16:
      return visit.template operator()<WideCells<true> >();
    case WeightFormat::q8_0:
      return visit.template operator()<Q8_0Cells>();
    case WeightFormat::q4_0:
      return visit.template operator()<Q4_0Cells>();
    case WeightFormat::q4_1:
      return visit.template operator()<Q4_1Cells>();
    case WeightFormat::q5_0:
      return visit.template operator()<Q5_0Cells>();
    case WeightFormat::q5_1:
      return visit.template operator()<Q5_1Cells>();
    case WeightFormat::q4_k:
      return visit.template operator()<KCells<false> >();
    case WeightFormat::q5_k:
      return visit.template operator()<KCells<true> >();
    case WeightFormat::q6_k:
      return visit.template operator()<Q6KCells>();
    case WeightFormat::float32:
    case WeightFormat::int8:
      return;
  }
}

// Where `count` rows from `first` on lie; rows beyond the matrix are its last one, so that they can be read.
HWY_INLINE void find_rows(const ConstPackedWeight& weight, Index first, Index count, const std::byte** rows) {
  for (Index i = 0; i < count; ++i) rows[i] = weight.block_row(std::min(first + i, weight.rows - 1));
}

template <class Cells>
void expand_leaf_of(const BlockLeaf& leaf, float* HWY_RESTRICT values) {
  const BlockFloats d;
  const std::byte* rows[kBlockLanes];
  for (Index column = 0; column < leaf.width; column += kBlockLanes) {
    find_rows(*leaf.weight, leaf.first_row + column, kBlockLanes, rows);
    for (Index p = 0; p < leaf.length; p += kGroup) {
      float* HWY_RESTRICT out = values + p * leaf.width + column;
      expand_group<Cells, 1>(rows, (leaf.first + p) / kGroup,
                             [&](int i, int, FloatVec cells) HWY_ATTR { hn::Store(cells, d, out + i * leaf.width); });
    }
  }
}

void expand_block_leaf(const BlockLeaf& leaf, float* values) {
  if (leaf.first % kGroup != 0 || leaf.length % kGroup != 0) return expand_leaf_by_rows(leaf, values);
  with_cells(leaf.weight->format, [&]<class Cells>() { expand_leaf_of<Cells>(leaf, values); });
}

// Fetches the bytes of the rows that come behind those at work, a part a group.
class BlockFetch {
 public:
  BlockFetch(const ConstPackedWeight& weight, Index next, Index count, Index groups) {
    const Index rows = std::min(count, weight.rows - next);
    if (rows <= 0) return;
    const std::size_t bytes = weight.row_bytes();
    at_ = weight.blocks + static_cast<std::size_t>(weight.first_row + next) * bytes;
    end_ = at_ + static_cast<std::size_t>(rows) * bytes;
    const auto lines = static_cast<std::size_t>(end_ - at_) / kLine + 1;
    step_ = (lines / static_cast<std::size_t>(groups) + 1) * kLine;
  }
  HWY_INLINE void part() {
    const std::byte* until = at_ + std::min<std::size_t>(step_, static_cast<std::size_t>(end_ - at_));
    for (; at_ < until; at_ += kLine) hwy::Prefetch(at_);
    at_ = until;
  }

 private:
  static constexpr std::size_t kLine = 64;
  const std::byte* at_ = nullptr;
  const std::byte* end_ = nullptr;
  std::size_t step_ = 0;
};

// kVectors vectors of rows from `first` on, of which those before work.end are stored.
template <class Cells, int kVectors>
void multiply_rows(const BlockRow& work, Index first) {
  const BlockFloats d;
  const ConstPackedWeight& weight = *work.weight;
  const Index k = weight.columns;
  const Index leaf_size = leaf_length(k), leaves = leaf_count(k);
  constexpr Index kRows = kVectors * kBlockLanes;
  const std::byte* rows[kRows];
  find_rows(weight, first, kRows, rows);
  BlockFetch fetch(weight, first + kRows, kRows, k / kGroup);
  FloatVec waiting[kMaxTreeDepth + 1][kVectors];
  for (Index leaf = 0; leaf < leaves; ++leaf) {
    FloatVec acc[kVectors];
    for (FloatVec& cells : acc) cells = hn::Zero(d);
    const Index end = std::min(k, (leaf + 1) * leaf_size);
    for (Index p = leaf * leaf_size; p < end; p += kGroup) {
      const float* HWY_RESTRICT x = work.x + p;
      fetch.part();
      expand_group<Cells, kVectors>(rows, p / kGroup, [&](int i, int v, FloatVec cells) HWY_ATTR {
        const auto value = flush_operand(d, hn::Set(d, x[i]));
        acc[v] = flush_operand(d, fused(d, value, flush_operand(d, cells), acc[v]));
      });
    }
    const bool last = leaf + 1 == leaves;
    Index level = 0;
    for (Index rest = leaf; rest != 0; rest >>= 1, ++level) {
      if ((rest & 1) != 0) {
        for (int v = 0; v < kVectors; ++v) acc[v] = flush_operand(d, hn::Add(waiting[level][v], acc[v]));
      } else if (!last) {
        break;
      }
    }
    if (!last) {
      for (int v = 0; v < kVectors; ++v) waiting[level][v] = acc[v];
      continue;
    }
    for (int v = 0; v < kVectors; ++v) {
      const Index row = first + v * kBlockLanes;
      const auto mask = hn::FirstN(d, static_cast<std::size_t>(std::clamp<Index>(work.end - row, 0, kBlockLanes)));
      hn::BlendedStore(flush_store(d, acc[v]), mask, d, work.y + row);
    }
  }
}

template <class Cells>
void multiply_block_row_of(const BlockRow& work) {
  Index first = work.first;
  while (first < work.end) {
    const Index vectors = std::min<Index>((work.end - first + kBlockLanes - 1) / kBlockLanes, kBlockVectors);
    if (vectors == 1) {
      multiply_rows<Cells, 1>(work, first);
    } else if (vectors == 2) {
      multiply_rows<Cells, 2>(work, first);
    } else {
      multiply_rows<Cells, kBlockVectors>(work, first);
    }
    first += vectors * kBlockLanes;
  }
}

void multiply_block_row(const BlockRow& work) {
  with_cells(work.weight->format, [&]<class Cells>() { multiply_block_row_of<Cells>(work); });
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {

HWY_EXPORT(block_rows_in_groups);
HWY_EXPORT(expand_block_leaf);
HWY_EXPORT(multiply_block_row);

constexpr Index kGroupColumns = 32;

}  // namespace

BlockKernels block_kernels(const Context& context, Index k) {
  const bool groups = SAMBA_CPU_KERNEL(context, block_rows_in_groups)() && k % kGroupColumns == 0 &&
                      leaf_length(k) % kGroupColumns == 0;
  BlockKernels kernels{};
  kernels.expand = SAMBA_CPU_KERNEL(context, expand_block_leaf);
  if (groups) kernels.multiply_row = SAMBA_CPU_KERNEL(context, multiply_block_row);
  return kernels;
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
