#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/linear.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/linear.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "samba/backends/cpu/gemm_tile-inl.h"
#include "samba/backends/cpu/vectors-inl.h"
#include "samba/numerics/fold.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

TileShape tile_shape() {
  const Index lanes = static_cast<Index>(hn::Lanes(hn::ScalableTag<float>()));
  return {kTileRows, kTileVectors * lanes, lanes};
}

void pack_transposed(const float* source, Index stride, Index rows, Index k, Index width, float* packed) {
  transpose_rows(source, stride, rows, k, width, packed);
}

// packed[p][r] = source[p * stride + r] for r < rows; columns beyond `rows` are +0.
void pack_copied(const float* HWY_RESTRICT source, Index stride, Index rows, Index k, Index width,
                 float* HWY_RESTRICT packed) {
  for (Index p = 0; p < k; ++p, source += stride, packed += width) {
    std::copy_n(source, rows, packed);
    std::fill(packed + rows, packed + width, 0.0F);
  }
}

// A leaf of one panel: `length` lines of `vectors` vectors.
template <class Cells>
struct PanelLeaf {
  const typename Cells::Cell* cells;
  const float* scales;
  Index length;
  int vectors;
};

template <class Cells>
void expand_leaf(const PanelLeaf<Cells>& leaf, float* HWY_RESTRICT values) {
  const hn::ScalableTag<float> d;
  const Index lanes = lanes_of(d);
  for (int j = 0; j < leaf.vectors; ++j) {
    const auto scale = Cells::kScaled ? hn::Load(d, leaf.scales + j * lanes) : hn::Zero(d);
    for (Index p = 0; p < leaf.length; ++p) {
      const Index at = (p * leaf.vectors + j) * lanes;
      hn::Store(Cells::load(d, leaf.cells + at, scale), d, values + at);
    }
  }
}

// One panel of columns for the tiles [first_tile, end_tile). `scratch` holds tiles * levels partial tiles, and behind
// them a leaf of the panel.
template <class Cells>
void run_block_of(const PackedProduct& product, Index panel, Index first_tile, Index end_tile, float* scratch) {
  const TileShape tile = tile_shape();
  const Index leaf_size = leaf_length(product.k);
  const Index leaves = leaf_count(product.k);
  const Index first_column = panel * tile.columns;
  const Index columns = std::min(tile.columns, product.n - first_column);
  const int vectors = static_cast<int>((columns + tile.lanes - 1) / tile.lanes);
  const Index panel_columns = vectors * tile.lanes;
  const Index tile_cells = tile.rows * tile.columns;
  const bool expands = !std::is_same_v<Cells, FloatCells> && end_tile - first_tile > 1;
  float* waiting = scratch;
  float* expanded = scratch + (end_tile - first_tile) * tile_cells * tree_levels(leaves);
  PanelLeaf<Cells> stored;
  stored.scales = Cells::kScaled ? product.scales + first_column : nullptr;
  stored.vectors = vectors;
  const auto* cells = static_cast<const typename Cells::Cell*>(product.b) + first_column * product.k;
  for (Index leaf = 0; leaf < leaves; ++leaf) {
    const Index first = leaf * leaf_size;
    stored.cells = cells + first * panel_columns;
    stored.length = std::min(leaf_size, product.k - first);
    if (expands) expand_leaf(stored, expanded);
    for (Index i = first_tile; i < end_tile; ++i) {
      const Index first_row = i * tile.rows;
      const Index rows = std::min(tile.rows, product.m - first_row);
      const auto run = [&]<class Given>(const typename Given::Cell* b) HWY_ATTR {
        TileLeaf<Given> work;
        work.a = product.a + first_row * product.k + first * rows;
        work.b = b;
        work.scales = stored.scales;
        work.length = stored.length;
        work.leaf = leaf;
        work.last = leaf + 1 == leaves;
        work.waiting = waiting + (i - first_tile) * tile_cells;
        work.level_stride = (end_tile - first_tile) * tile_cells;
        work.c = product.c + first_row * product.n + first_column;
        work.c_stride = product.n;
        work.columns = columns;
        run_tile(static_cast<int>(rows), vectors, work);
      };
      if (expands) {
        run.template operator()<FloatCells>(expanded);
      } else {
        run.template operator()<Cells>(stored.cells);
      }
    }
  }
}

void run_block(const PackedProduct& product, Index panel, Index first_tile, Index end_tile, float* scratch) {
  switch (product.format) {
    case WeightFormat::float32:
      return run_block_of<FloatCells>(product, panel, first_tile, end_tile, scratch);
    case WeightFormat::bfloat16:
      return run_block_of<Bfloat16Cells>(product, panel, first_tile, end_tile, scratch);
    case WeightFormat::int8:
      return run_block_of<Int8Cells>(product, panel, first_tile, end_tile, scratch);
  }
}

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

HWY_EXPORT(tile_shape);
HWY_EXPORT(pack_transposed);
HWY_EXPORT(pack_copied);
HWY_EXPORT(run_block);
HWY_EXPORT(expand_matrix);
HWY_EXPORT(add_bias_rows);
HWY_EXPORT(column_sums);
HWY_EXPORT(dot_leaves);

constexpr Index kBlockRows = 64;                 // rows that walk the leaves of a panel together
constexpr Index kSecondLevelFloats = 96 * 1024;  // their packed A should stay in the second-level cache (384 KiB)
constexpr Index kSmallPack = 32 * 1024;          // elements below which one thread packs faster than a team
constexpr Index kSmallProduct = 256 * 1024;      // fused steps below which one thread multiplies faster than a team

Index cell_bytes(WeightFormat format, Index cells) {
  return format == WeightFormat::float32 ? 4 * cells : format == WeightFormat::bfloat16 ? 2 * cells : cells;
}

// The panels of a weight, in the format it is stored in.
class Panels final : public PreparedWeight {
 public:
  Panels(HostMemory& memory, WeightFormat format, Index n, Index k, Index padded_n)
      : format_(format), n_(n), k_(k), cells_(memory, cell_bytes(format, padded_n * k)) {
    if (format == WeightFormat::int8) scales_ = DeviceArray<float>(memory, padded_n);
  }
  Index rows() const override { return n_; }
  Index columns() const override { return k_; }
  WeightFormat format() const override { return format_; }
  std::size_t byte_size() const override { return cells_.byte_size() + scales_.byte_size(); }

  template <class Cell>
  Cell* cells() {
    return reinterpret_cast<Cell*>(cells_.data());
  }
  const void* cells() const { return cells_.data(); }
  float* scales() { return scales_.data(); }
  const float* scales() const { return scales_.data(); }

 private:
  WeightFormat format_;
  Index n_, k_;
  DeviceArray<std::byte> cells_;
  DeviceArray<float> scales_;  // of int8
};

Index round_up(Index value, Index unit) { return (value + unit - 1) / unit * unit; }

// packed[p][r] = source[r * k + p] for r < rows; columns beyond `rows` are 0.
template <class Cell>
void transpose_cells(const Cell* source, Index rows, Index k, Index width, Cell* packed) {
  for (Index p = 0; p < k; ++p, packed += width) {
    for (Index r = 0; r < rows; ++r) packed[r] = source[r * k + p];
    std::fill(packed + rows, packed + width, Cell{0});
  }
}

// Packs [k] lines of a matrix into groups of `width` rows or columns: B's panels and A's tiles. `transposed` says that
// the group's members are rows of the source (stride k) and not its columns (stride `members`). A group that is not
// full is as wide as its members rounded up to `unit`.
template <class Cell>
void pack_groups(Context& context, bool transposed, Index members, Index k, Index width, Index unit, const Cell* source,
                 Cell* packed) {
  const auto copy = SAMBA_CPU_KERNEL(context, pack_copied);
  const auto transpose = SAMBA_CPU_KERNEL(context, pack_transposed);
  const Index groups = (members + width - 1) / width;
  const auto pack = [&](Index first, Index end, int) {
    for (Index group = first; group < end; ++group) {
      const Index begin = group * width;
      const Index count = std::min(width, members - begin);
      const Index padded = round_up(count, unit);
      Cell* out = packed + begin * k;
      if constexpr (!std::is_same_v<Cell, float>) {
        transpose_cells(source + begin * k, count, k, padded, out);
      } else if (transposed) {
        transpose(source + begin * k, k, count, k, padded, out);
      } else {
        copy(source + begin, members, count, k, padded, out);
      }
    }
  };
  if (members * k < kSmallPack) {
    pack(0, groups, 0);
  } else {
    context.parallel(groups, 1, pack);
  }
}

void multiply(Context& context, const PackedProduct& product) {
  const Index m = product.m, n = product.n, k = product.k;
  const auto run = SAMBA_CPU_KERNEL(context, run_block);
  const TileShape tile = SAMBA_CPU_KERNEL(context, tile_shape)();
  const Index tiles = (m + tile.rows - 1) / tile.rows;
  const Index panels = (n + tile.columns - 1) / tile.columns;
  const Index fitting = std::max<Index>(1, kSecondLevelFloats / (k * tile.rows));
  const Index block = std::min({tiles, fitting, kBlockRows / tile.rows});
  const Index blocks = (tiles + block - 1) / block;
  const Index leaf_floats = product.format == WeightFormat::float32 ? 0 : tile.columns * leaf_length(k);
  const Index scratch_floats = block * tile.rows * tile.columns * tree_levels(leaf_count(k)) + leaf_floats;
  const auto work = [&](Index first, Index end, int thread) {
    float* scratch = context.scratch(thread, scratch_floats);
    for (Index unit = first; unit < end; ++unit) {
      const Index first_tile = unit % blocks * block;
      run(product, unit / blocks, first_tile, std::min(tiles, first_tile + block), scratch);
    }
  };
  if (m * n * k < kSmallProduct) {
    DazScope daz;
    work(0, panels * blocks, 0);
  } else {
    context.parallel(panels * blocks, 1, work);
  }
}

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

float* LinearCpu::packed_a(Index count) {
  if (packed_a_.size() < count) packed_a_ = DeviceArray<float>(memory_, count);
  return packed_a_.data();
}

float* LinearCpu::packed_b(Index count) {
  if (packed_b_.size() < count) packed_b_ = DeviceArray<float>(memory_, count);
  return packed_b_.data();
}

void LinearCpu::gemm(Layout layout, Index m, Index n, Index k, const float* a, const float* b, float* c) {
  const TileShape tile = SAMBA_CPU_KERNEL(context_, tile_shape)();
  float* tiles = packed_a(m * k);
  float* panels = packed_b(round_up(n, tile.lanes) * k);
  pack_groups(context_, layout != Layout::tn, m, k, tile.rows, 1, a, tiles);
  pack_groups(context_, layout == Layout::nt, n, k, tile.columns, tile.lanes, b, panels);
  multiply(context_, {m, n, k, tiles, WeightFormat::float32, panels, nullptr, c});
}

std::unique_ptr<PreparedWeight> LinearCpu::prepare(Index n, Index k, const float* weight) {
  const TileShape tile = SAMBA_CPU_KERNEL(context_, tile_shape)();
  auto panels = std::make_unique<Panels>(memory_, WeightFormat::float32, n, k, round_up(n, tile.lanes));
  refresh(*panels, weight);
  return panels;
}

std::unique_ptr<PreparedWeight> LinearCpu::prepare(const ConstPackedWeight& weight) {
  const TileShape tile = SAMBA_CPU_KERNEL(context_, tile_shape)();
  auto panels =
      std::make_unique<Panels>(memory_, weight.format, weight.rows, weight.columns, round_up(weight.rows, tile.lanes));
  refresh(*panels, weight);
  return panels;
}

void LinearCpu::refresh(PreparedWeight& prepared, const WeightView& weight) {
  const TileShape tile = SAMBA_CPU_KERNEL(context_, tile_shape)();
  auto& panels = static_cast<Panels&>(prepared);
  const auto fill = [&]<class Cell>(const Cell* cells) {
    pack_groups(context_, true, panels.rows(), panels.columns(), tile.columns, tile.lanes, cells, panels.cells<Cell>());
  };
  switch (weight.format()) {
    case WeightFormat::float32:
      return fill(weight.values());
    case WeightFormat::bfloat16:
      return fill(weight.packed().bits);
    case WeightFormat::int8:
      break;
  }
  fill(weight.packed().codes);
  const Index padded = round_up(panels.rows(), tile.lanes);
  const std::int32_t* exponents = weight.packed().exponents;
  std::transform(exponents, exponents + panels.rows(), panels.scales(), power_of_two);
  std::fill(panels.scales() + panels.rows(), panels.scales() + padded, 0.0F);
}

void LinearCpu::linear(const PreparedWeight& weight, Index m, const float* x, float* y) {
  const TileShape tile = SAMBA_CPU_KERNEL(context_, tile_shape)();
  const auto& panels = static_cast<const Panels&>(weight);
  const Index k = panels.columns();
  float* tiles = packed_a(m * k);
  pack_groups(context_, true, m, k, tile.rows, 1, x, tiles);
  multiply(context_, {m, panels.rows(), k, tiles, panels.format(), panels.cells(), panels.scales(), y});
}

void LinearCpu::expand(const ConstPackedWeight& packed, float* values) {
  const auto run = SAMBA_CPU_KERNEL(context_, expand_matrix);
  context_.parallel(packed.rows, std::max<Index>(1, kSmallPack / packed.columns), [&](Index first, Index end, int) {
    run(packed_rows(packed, first, end), values + first * packed.columns);
  });
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
