// Packed weights (spec 50 A4, A5) and rows of blocks (docs/formats/gguf.md): expansion of a matrix and of gathered
// rows, and products. Few rows of x are multiplied while the weight is expanded, many after it.
#pragma once

#include "samba/backends/gpu/folds.gpu.h"
#include "samba/core/error.h"
#include "samba/numerics/block_values.h"

namespace samba::SAMBA_GPU {

namespace {

// One element of a packed matrix. The owner of the view stays on the host.
struct PackedCells {
  WeightFormat format;
  Index columns;
  const void* cells;  // bfloat16 bits, int8 codes, or rows of blocks
  const std::int32_t* exponents;
  Index block_values, block_bytes;  // 0: no blocks
  Index first_row, interleaved_head;
  SAMBA_DEVICE float value(Index row, Index column) const {
    if (block_values != 0) return value_of_block(row, column);
    if (exponents == nullptr) {
      return expand_bfloat16(static_cast<const std::uint16_t*>(cells)[row * columns + column]);
    }
    return expand_int8(static_cast<const std::int8_t*>(cells)[row * columns + column], power_of_two(exponents[row]));
  }
  // Where row `row` of the view lies: ConstPackedWeight::block_row.
  SAMBA_DEVICE float value_of_block(Index row, Index column) const {
    Index at = first_row + row;
    if (interleaved_head != 0) {
      const Index in_head = at % interleaved_head, half = interleaved_head / 2;
      at += 2 * (in_head % half) + in_head / half - in_head;
    }
    const Index block = at * (columns / block_values) + column / block_values;
    return block_values::value(format, static_cast<block_values::Bytes>(cells) + block * block_bytes,
                               static_cast<int>(column % block_values));
  }
};

PackedCells packed_cells(const ConstPackedWeight& packed) {
  PackedCells cells{packed.format, packed.columns, packed.blocks, packed.exponents, 0, 0, 0, 0};
  if (packed.blocks != nullptr) {
    const BlockLayout layout = block_layout(packed.format);
    cells.block_values = layout.values;
    cells.block_bytes = static_cast<Index>(layout.bytes);
    cells.first_row = packed.first_row;
    cells.interleaved_head = packed.interleaved_head;
  } else {
    cells.cells = packed.bits != nullptr ? static_cast<const void*>(packed.bits) : packed.codes;
  }
  return cells;
}

struct Expand {
  PackedCells cells;
  float* values;
  SAMBA_DEVICE void operator()(Index i) const { values[i] = cells.value(i / cells.columns, i % cells.columns); }
};

struct GatherPacked {
  PackedCells cells;
  const std::int32_t* ids;
  float* y;
  SAMBA_DEVICE void operator()(Index i) const { y[i] = flush(cells.value(ids[i / cells.columns], i % cells.columns)); }
};

// Products of few rows of x with a packed weight, a leaf at a time as row_leaves computes them (gemm.gpu.h): a thread
// has one output, and the cells of its leaf are expanded to shared memory by all. partials[t, i, j]; blocks: outputs,
// leaves.
inline constexpr int kPackedRows = 8;  // of x, at most
inline constexpr int kPackedThreads = 128;
inline constexpr int kPackedDepth = 32;
inline constexpr int kPackedPitch = kPackedDepth + 1;

template <int kRows>
SAMBA_KERNEL(kPackedThreads)
packed_leaves(PackedCells cells, Index n, Index m, const float* x, Index leaf, float* partials) {
  SAMBA_SHARED(float, weights, kPackedThreads* kPackedPitch);
  SAMBA_SHARED(float, x_slice, kRows* kPackedDepth);
  const auto thread = static_cast<int>(thread_index());
  const Index k = cells.columns, first_output = static_cast<Index>(block_x()) * kPackedThreads;
  const int outputs = n - first_output < kPackedThreads ? static_cast<int>(n - first_output) : kPackedThreads;
  const Index first = static_cast<Index>(block_y()) * leaf;
  const Index end = first + leaf < k ? first + leaf : k;
  float acc[kRows];
  SAMBA_UNROLL
  for (int i = 0; i < kRows; ++i) acc[i] = 0.0F;
  for (Index p = first; p < end; p += kPackedDepth) {
    const int length = end - p < kPackedDepth ? static_cast<int>(end - p) : kPackedDepth;
    const int d = thread % kPackedDepth;
    if (d < length) {
      for (int row = thread / kPackedDepth; row < outputs; row += kPackedThreads / kPackedDepth) {
        weights[row * kPackedPitch + d] = flush(cells.value(first_output + row, p + d));
      }
      for (int i = thread / kPackedDepth; i < kRows; i += kPackedThreads / kPackedDepth) {
        x_slice[i * kPackedDepth + d] = i < m ? flush(x[i * k + p + d]) : 0.0F;
      }
    }
    barrier();
    if (thread < outputs) {
      for (int q = 0; q < length; ++q) {
        const float weight = weights[thread * kPackedPitch + q];
        SAMBA_UNROLL
        for (int i = 0; i < kRows; ++i) acc[i] = flush(fma(x_slice[i * kPackedDepth + q], weight, acc[i]));
      }
    }
    barrier();
  }
  if (thread >= outputs) return;
  for (int i = 0; i < kRows && i < m; ++i) partials[(block_y() * m + i) * n + first_output + thread] = acc[i];
}

template <int kRows>
void launch_packed(Context& context, const PackedCells& cells, Index n, Index m, const float* x, float* y) {
  const Index leaves = leaf_count(cells.columns), leaf = leaf_length(cells.columns);
  const Grid grid{static_cast<unsigned>((n + kPackedThreads - 1) / kPackedThreads), static_cast<unsigned>(leaves)};
  if (leaves == 1) return launch(context, grid, kPackedThreads, packed_leaves<kRows>, cells, n, m, x, leaf, y);
  const Workspace::Scope scope(context.workspace());
  float* partials = context.workspace().floats(leaves * m * n);
  launch(context, grid, kPackedThreads, packed_leaves<kRows>, cells, n, m, x, leaf, partials);
  for_each(context, m * n, FoldLeaves{leaves, m * n, partials, y});
}

// Copies of the arrays of a packed weight; rows of blocks are read where they lie.
class PackedForm final : public PreparedWeight {
 public:
  PackedForm(Context& context, const ConstPackedWeight& packed)
      : blocks_(packed),
        cells_(context.memory(), packed.blocks != nullptr ? 0 : packed.rows * packed.columns * cell_size(packed)),
        exponents_(context.memory(), packed.exponents != nullptr ? packed.rows : 0) {}
  Index rows() const override { return blocks_.rows; }
  Index columns() const override { return blocks_.columns; }
  WeightFormat format() const override { return blocks_.format; }
  std::size_t byte_size() const override {
    if (reads_blocks()) return static_cast<std::size_t>(rows()) * blocks_.row_bytes();
    return cells_.byte_size() + exponents_.byte_size();
  }
  bool reads_blocks() const override { return blocks_.blocks != nullptr; }

  void fill(Context& context, const ConstPackedWeight& packed) {
    blocks_ = packed;
    if (reads_blocks()) return;
    context.memory().copy(cells_.data(), packed_cells(packed).cells, cells_.byte_size());
    if (exponents_.size() > 0) context.memory().copy(exponents_.data(), packed.exponents, exponents_.byte_size());
  }
  ConstPackedWeight view() const {
    if (reads_blocks()) return blocks_;
    ConstPackedWeight packed;
    packed.format = format();
    packed.rows = rows();
    packed.columns = columns();
    packed.exponents = exponents_.data();
    if (format() == WeightFormat::bfloat16) packed.bits = reinterpret_cast<const std::uint16_t*>(cells_.data());
    if (format() == WeightFormat::int8) packed.codes = reinterpret_cast<const std::int8_t*>(cells_.data());
    return packed;
  }
  PackedCells cells() const { return packed_cells(view()); }

 private:
  static Index cell_size(const ConstPackedWeight& packed) { return packed.bits != nullptr ? 2 : 1; }

  ConstPackedWeight blocks_;  // of other forms its size and format alone
  DeviceArray<std::byte> cells_;
  DeviceArray<std::int32_t> exponents_;
};

}  // namespace

std::unique_ptr<PreparedWeight> prepare_packed(Context& context, const ConstPackedWeight& packed) {
  auto prepared = std::make_unique<PackedForm>(context, packed);
  prepared->fill(context, packed);
  return prepared;
}

void refresh_packed(Context& context, PreparedWeight& prepared, const ConstPackedWeight& packed) {
  static_cast<PackedForm&>(prepared).fill(context, packed);
}

void gather_prepared(Context& context, const PreparedWeight& weight, Index count, const std::int32_t* rows,
                     float* values) {
  const PackedCells cells = static_cast<const PackedForm&>(weight).cells();
  for_each(context, count * weight.columns(), GatherPacked{cells, rows, values});
}

Weight stored_packed(Context& context, const PreparedWeight& weight) {
  const ConstPackedWeight view = static_cast<const PackedForm&>(weight).view();
  const Index n = weight.rows(), k = weight.columns();
  if (view.blocks != nullptr) {
    const std::size_t bytes = view.row_bytes();
    const std::shared_ptr<std::byte[]> rows(new std::byte[weight.byte_size()]);
    for (Index i = 0; i < n; ++i) {
      context.memory().copy_to_host(rows.get() + static_cast<std::size_t>(i) * bytes, view.block_row(i), bytes);
    }
    return PackedWeight(ConstPackedWeight::of_blocks(weight.format(), n, k, rows.get(), rows));
  }
  const bool bits = view.bits != nullptr;
  Array values(bits ? DType::uint16 : DType::int8, {n, k});
  context.memory().copy_to_host(values.data(), packed_cells(view).cells, values.byte_size());
  if (bits) return PackedWeight(std::move(values));
  Array exponents(DType::int32, {n});
  context.memory().copy_to_host(exponents.data(), view.exponents, exponents.byte_size());
  return PackedWeight(std::move(values), std::move(exponents));
}

void linear_packed(Context& context, const PreparedWeight& weight, Index m, const float* x, float* y) {
  const PackedCells cells = static_cast<const PackedForm&>(weight).cells();
  const Index n = weight.rows(), k = weight.columns();
  if (m == 1) return launch_packed<1>(context, cells, n, m, x, y);
  if (m <= kPackedRows) return launch_packed<kPackedRows>(context, cells, n, m, x, y);
  const Workspace::Scope scope(context.workspace());
  float* values = context.workspace().floats(n * k);
  for_each(context, n * k, Expand{cells, values});
  launch_nt(context, m, n, k, x, values, y);
}

void expand_packed(Context& context, const ConstPackedWeight& packed, float* values) {
  for_each(context, packed.rows * packed.columns, Expand{packed_cells(packed), values});
}

void gather_packed(Context& context, Index positions, Index width, const std::int32_t* ids,
                   const ConstPackedWeight& packed, float* y) {
  for_each(context, positions * width, GatherPacked{packed_cells(packed), ids, y});
}

}  // namespace samba::SAMBA_GPU
