// Products with a matrix that is not prepared, once per target: its panels are packed on the way.
//
// Packing never stands between two tiles for long. The first tile that meets a leaf of columns b[k, n] reads it where
// it lies and stores the lines as it multiplies, in the shadow of its fused steps; the tiles before it have asked for
// those lines. Rows b[n, k] must be transposed: each tile asks for a part of the next leaf, and that part is packed as
// soon as the tile is done. So memory is read all the time, in pieces that the caches hold whatever the distance of the
// rows. Where one block is all of A, several panels of columns take each leaf together, so that more of a row is read
// at once.
#if defined(SAMBA_CPU_GEMM_MATRIX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_GEMM_MATRIX_INL_H_
#undef SAMBA_CPU_GEMM_MATRIX_INL_H_
#else
#define SAMBA_CPU_GEMM_MATRIX_INL_H_
#endif

#include "samba/backends/cpu/gemm_panels-inl.h"
#include "samba/backends/cpu/panels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

// The units of a thread, by jobs: several panels by all rows, or one panel by some blocks of rows.
template <RowOrder kOrder>
class MatrixRun {
 public:
  MatrixRun(const Product& product, const PanelLayout& layout, const RowBlocks& blocks, GemmScratch& scratch)
      : product_(product),
        layout_(layout),
        blocks_(blocks),
        scratch_(scratch),
        matrix_(static_cast<const float*>(product.b)),
        columns_(product.source == PanelSource::columns),
        in_place_(reads_in_place(product, blocks)),
        k_(product.k),
        leaf_size_(leaf_length(k_)),
        leaves_(leaf_count(k_)) {}

  void run(Index first_unit, Index end_unit) {
    end_unit_ = end_unit;
    Job job = job_at(first_unit);
    if (!columns_ && job.valid()) pack(job.first_panel, 0, slot(0), 0, length(0));
    while (job.valid()) {
      const Job next = job_at(job.end_unit);
      for (Index block = job.first_block; block < job.end_block; ++block) {
        for (Index leaf = 0; leaf < leaves_; ++leaf) run_leaf_of(job, block, leaf, next);
      }
      first_slot_ += leaves_;
      job = next;
    }
  }

 private:
  // Where one block is all of A, panels of whole cache lines stay in the second-level cache for its few tiles and need
  // not be stored, unless their distance makes them share cache sets.
  static bool reads_in_place(const Product& product, const RowBlocks& blocks) {
    constexpr Index kLineFloats = 16, kAliasedFloats = 512;
    return kTileCells / kTileRows % kLineFloats == 0 && product.source == PanelSource::columns && blocks.count == 1 &&
           product.n % kLineFloats == 0 && product.n % kAliasedFloats != 0 && leaf_length(product.k) <= kLeaf &&
           reinterpret_cast<std::uintptr_t>(product.b) % (kLineFloats * sizeof(float)) == 0;
  }

  struct Job {
    Index first_panel = 0, end_panel = 0;
    Index first_block = 0, end_block = 0;
    Index end_unit = 0;
    bool direct = false;  // a single tile of rows reads B where it lies
    bool valid() const { return end_panel > first_panel; }
  };

  Job job_at(Index unit) const {
    if (unit >= end_unit_) return {};
    Job job;
    job.first_panel = unit / blocks_.count;
    job.first_block = unit % blocks_.count;
    const Index left = end_unit_ - unit;
    if (blocks_.count == 1) {
      job.end_panel = job.first_panel + std::min(left, blocks_.panels);
      job.end_block = 1;
      job.end_unit = job.end_panel;
    } else {
      job.end_panel = job.first_panel + 1;
      job.end_block = std::min(blocks_.count, job.first_block + left);
      job.end_unit = unit + job.end_block - job.first_block;
    }
    const PanelRun last(product_, layout_, job.end_panel - 1);
    job.direct = columns_ && product_.m <= kTileRows && last.columns == last.width;
    return job;
  }

  Index length(Index leaf) const { return std::min(leaf_size_, k_ - leaf * leaf_size_); }
  Index first_column(const Job& job) const { return layout_.first(job.first_panel) * layout_.lanes; }
  Index columns(const Job& job) const {
    return std::min(layout_.first(job.end_panel) * layout_.lanes, product_.n) - first_column(job);
  }
  // Leaves lie in a ring: those of a panel, of rows the first of the next panel too. A leaf of columns is gone before
  // the next comes where one block is all of A.
  float* slot(Index leaf) const { return scratch_.panels + (first_slot_ + leaf) % blocks_.slots * blocks_.slot_floats; }
  const float* source(const Job& job, Index term) const {
    return columns_ ? matrix_ + term * product_.n + first_column(job) : matrix_ + first_column(job) * k_ + term;
  }

  // Lines [first, end) of a leaf of a panel.
  void pack(Index panel, Index leaf, float* slot, Index first, Index end) const {
    if (first >= end) return;
    const Index term = leaf * leaf_size_ + first;
    const PanelRun run(product_, layout_, panel);
    float* to = slot + first * run.width;
    if (columns_) {
      copy_lines(matrix_ + term * product_.n + run.first_column, product_.n, run.columns, end - first, run.width, to);
    } else {
      transpose_lines(matrix_ + run.first_column * k_ + term, k_, run.columns, end - first, run.width, to);
    }
  }

  TileRange tiles_of(Index block) const {
    TileRange tiles{block * blocks_.tiles, std::min(blocks_.all_tiles, (block + 1) * blocks_.tiles), {}};
    tiles.packed = {const_cast<float*>(product_.packed_a), 0, product_.m};
    return tiles;
  }

  void run_leaf_of(const Job& job, Index block, Index leaf, const Job& next) {
    if (job.direct) return run_direct(job, block, leaf);
    const bool last_leaf = leaf + 1 == leaves_;
    if (block == job.first_block && !last_leaf) return run_fetching(job, block, leaf, job, leaf + 1);
    if (block + 1 == job.end_block && last_leaf && next.valid() && !next.direct) {
      return run_fetching(job, block, leaf, next, 0);
    }
    if (block == job.first_block) return run_fetching(job, block, leaf, Job{}, 0);
    run_held(job, block, leaf);
  }

  void run_direct(const Job& job, Index block, Index leaf) {
    constexpr Index kLinesAhead = 16;
    const Index line_bytes = product_.n * Index{sizeof(float)};
    for (Index panel = job.first_panel; panel < job.end_panel; ++panel) {
      const PanelRun run(product_, layout_, panel);
      const float* lines = matrix_ + leaf * leaf_size_ * product_.n + run.first_column;
      if (leaf_size_ <= kLeaf) scratch_.plan.lines(run.vectors, line_bytes, layout_.lanes * Index{sizeof(float)});
      run_leaf<FloatCells, kOrder>(
          run, tiles_of(block), scratch_.waiting, leaf, LeafLines<FloatCells>{lines, product_.n},
          [&](Index, TileLeaf<FloatCells>& work) HWY_ATTR {
            if (leaf_size_ <= kLeaf) scratch_.plan.ask(lines + kLinesAhead * product_.n, work);
          },
          [](Index) {});
    }
  }

  // The leaf of a job; the leaves behind it are packed.
  void run_held(const Job& job, Index block, Index leaf) {
    const TileRange tiles = tiles_of(block);
    const PanelRun run(product_, layout_, job.first_panel);
    const float* behind = leaf + 1 < leaves_ ? slot(leaf + 1) : slot(0);
    const LeafAhead<FloatCells> ahead(run, tiles, scratch_.plan);
    run_leaf<FloatCells, kOrder>(
        run, tiles, scratch_.waiting, leaf, LeafLines<FloatCells>{slot(leaf), run.width},
        [&](Index tile, TileLeaf<FloatCells>& work) HWY_ATTR { ahead.ask(tile, behind, work); }, [](Index) {});
  }

  // The leaf of a job, while `after_leaf` of `after` is fetched, and packed if it consists of rows.
  void run_fetching(const Job& job, Index block, Index leaf, const Job& after, Index after_leaf) {
    const TileRange tiles = tiles_of(block);
    const bool comes = after.valid(), is_new = columns_ && block == job.first_block;
    const Index parts = (job.end_panel - job.first_panel) * tiles.count();
    const Index part_lines = ((leaf_size_ + parts - 1) / parts + 3) / 4 * 4;
    const bool fetches = comes && leaf_size_ <= kLeaf;
    if (fetches) plan_part(after, part_lines);
    const Index after_length = comes ? length(after_leaf) : 0;
    Index line = 0;  // of the leaf that comes
    float* here = slot(leaf);
    float* waiting = scratch_.waiting;
    for (Index panel = job.first_panel; panel < job.end_panel; ++panel, waiting += blocks_.panel_waiting) {
      const PanelRun run(product_, layout_, panel);
      const float* lines = matrix_ + leaf * leaf_size_ * product_.n + run.first_column;
      const bool stores = is_new && !in_place_ && run.columns == run.width;
      if (is_new && !in_place_ && !stores) pack(panel, leaf, here, 0, length(leaf));
      run_leaf<FloatCells, kOrder>(
          run, tiles, waiting, leaf,
          in_place_ ? LeafLines<FloatCells>{lines, product_.n} : LeafLines<FloatCells>{here, run.width},
          [&](Index tile, TileLeaf<FloatCells>& work) HWY_ATTR {
            if (stores && tile == 0) {
              work.b = lines;
              work.b_stride = product_.n;
              work.packed = here;
            }
            if (fetches && line < after_length) {
              scratch_.plan.ask(source(after, after_leaf * leaf_size_ + line), work);
            }
          },
          [&](Index) HWY_ATTR {
            if (comes && !columns_) {
              pack(after.first_panel, after_leaf, slot(leaf + 1), line, std::min(after_length, line + part_lines));
            }
            line += part_lines;
          });
    }
  }

  void plan_part(const Job& job, Index part_lines) {
    constexpr Index kLineFloats = 16, kLineBytes = 64;
    const Index floats = columns_ ? columns(job) : part_lines;
    const Index rows = columns_ ? part_lines : columns(job);
    const Index row_floats = columns_ ? product_.n : k_;
    const bool aligned = reinterpret_cast<std::uintptr_t>(matrix_) % kLineBytes == 0 && row_floats % kLineFloats == 0;
    scratch_.plan.rows(rows, row_floats * Index{sizeof(float)},
                       (floats + kLineFloats - 1) / kLineFloats + (aligned ? 0 : 1), kLineBytes, leaf_size_);
  }

  const Product& product_;
  const PanelLayout& layout_;
  const RowBlocks& blocks_;
  GemmScratch& scratch_;
  const float* matrix_;
  bool columns_, in_place_;
  Index k_, leaf_size_, leaves_;
  Index end_unit_ = 0;
  Index first_slot_ = 0;
};

// acc[j] (+)= sum over i < R of x[i] * b[i * stride + j], one fused step after the other; `fresh`: from +0.
template <int R>
void add_rows(const float* HWY_RESTRICT x, const float* HWY_RESTRICT b, Index stride, Index columns, bool fresh,
              float* HWY_RESTRICT acc) {
  const hn::ScalableTag<float> d;
  hn::Vec<decltype(d)> values[R];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) values[i] = flush_operand(d, hn::Set(d, x[i]));
  over_vectors(d, 0, columns, [&](auto io, Index j) HWY_ATTR {
    auto sum = fresh ? hn::Zero(d) : hn::Load(d, acc + j);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      sum = flush_operand(d, fused(d, values[i], flush_operand(d, io.load(b + i * stride + j)), sum));
    }
    hn::Store(sum, d, acc + j);
  });
}

// Columns [first, end) of a product of one row: the rows of b[k, n] are read from end to end, eight at a time, and the
// chains of a leaf lie side by side in memory. `memory`: (levels + 1) times the columns, filled up to whole vectors.
inline void run_row(const Product& product, Index first, Index end, float* memory) {
  const hn::ScalableTag<float> d;
  const Index lanes = lanes_of(d), columns = end - first;
  const Index width = (columns + lanes - 1) / lanes * lanes;
  const Index leaf_size = leaf_length(product.k), leaves = leaf_count(product.k);
  float* HWY_RESTRICT acc = memory;
  for (Index leaf = 0; leaf < leaves; ++leaf) {
    const Index begin = leaf * leaf_size, stop = std::min(product.k, begin + leaf_size);
    const float* b = static_cast<const float*>(product.b) + begin * product.n + first;
    Index p = begin;
    for (; p + 8 <= stop; p += 8, b += 8 * product.n) {
      add_rows<8>(product.a + p, b, product.n, columns, p == begin, acc);
    }
    for (; p < stop; ++p, b += product.n) add_rows<1>(product.a + p, b, product.n, columns, p == begin, acc);

    // The tree, as in run_tile_leaf.
    const bool last = leaf + 1 == leaves;
    Index level = 0;
    for (Index rest = leaf; rest != 0; rest >>= 1, ++level) {
      if ((rest & 1) == 0) {
        if (!last) break;
        continue;
      }
      const float* HWY_RESTRICT lower = memory + (level + 1) * width;
      for (Index j = 0; j < width; j += lanes) {
        hn::Store(flush_operand(d, hn::Add(hn::Load(d, lower + j), hn::Load(d, acc + j))), d, acc + j);
      }
    }
    if (!last) {
      std::copy_n(acc, width, memory + (level + 1) * width);
    } else {
      over_vectors(d, 0, columns,
                   [&](auto io, Index j) HWY_ATTR { io.store(hn::Load(d, acc + j), product.c + first + j); });
    }
  }
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
