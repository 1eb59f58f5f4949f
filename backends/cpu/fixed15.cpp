#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/fixed15.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include <algorithm>

#include "samba/backends/cpu/fixed15-inl.h"
#include "samba/backends/cpu/fixed15.h"
#include "samba/backends/cpu/linear.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace fixed15 {

// Accumulators and operands in registers: 8 x 3 + 3 + 1 of 32 under AVX-512, 6 x 2 + 2 + 1 of 16 elsewhere.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
inline constexpr int kRows = 8;
inline constexpr int kVectors = 3;
#else
inline constexpr int kRows = 6;
inline constexpr int kVectors = 2;
#endif
constexpr Index kLanes = static_cast<Index>(hn::MaxLanes(Ints()));
constexpr Index kColumns = kVectors * kLanes;
constexpr Index kRunPairs = 128;  // a run of a panel stays in the first-level cache while the tiles of a block use it

TileShape tile_shape() { return {kRows, kColumns, kLanes}; }

// Quantises rows and places their pairs: rows that are not there are zeros.
void pack_rows(const Fixed15Packing& packing) {
  const Index pairs = (packing.k + 1) / 2;
  packing.norms->fill(0);
  for (Index r = 0; r < packing.width; ++r) {
    if (r >= packing.rows) {
      for (Index p = 0; p < pairs; ++p) packing.packed[p * packing.width + r] = 0;
      packing.exponents[r] = 0;
      continue;
    }
    std::int16_t* codes = packing.codes;
    packing.exponents[r] = quantize_row(packing.x + r * packing.k, packing.k, codes);
    if (packing.k % 2 != 0) codes[packing.k] = 0;
    place_pairs(codes, pairs, packing.packed + r, packing.width);
    constexpr Index kLargest = kFixed15Groups.front(), kSmallest = kFixed15Groups.back();
    for (Index first = 0; first < packing.k; first += kLargest) {
      const Index end = std::min(packing.k, first + kLargest);
      std::uint64_t squares[kLargest / kSmallest] = {};
      for (Index i = first; i < end; ++i) {
        squares[(i - first) / kSmallest] += static_cast<std::uint64_t>(std::int32_t{codes[i]} * std::int32_t{codes[i]});
      }
      std::uint64_t* norms = packing.norms->data();
      norms[0] = std::max(norms[0], squares[0] + squares[1] + squares[2] + squares[3]);
      norms[1] = std::max({norms[1], squares[0] + squares[1], squares[2] + squares[3]});
      norms[2] = std::max({norms[2], squares[0], squares[1], squares[2], squares[3]});
    }
  }
}

void quantize_rows(Index first, Index end, Index k, const float* x, std::int16_t* codes, std::int32_t* exponents) {
  for (Index i = first; i < end; ++i) exponents[i] = quantize_row(x + i * k, k, codes + i * k);
}

// Pairs whose products surely fit into 32 bits.
Index group_pairs(const Fixed15Norms& a, const Fixed15Norms& b) {
  for (std::size_t g = 0; g < kFixed15Groups.size(); ++g) {
    if (static_cast<double>(a[g]) * static_cast<double>(b[g]) < 0x1.FFFFFp61) return kFixed15Groups[g] / 2;
  }
  return kSurePairs;
}

struct TileRun {
  const std::int32_t* a;  // [.][R]
  const std::int32_t* b;  // [.][V * lanes]
  Index pairs, group;
  bool first;
  std::int32_t* low;  // [R][V * lanes]
  std::int32_t* high;
};

template <bool kVnni, int R, int V>
HWY_INLINE void run_tile(const TileRun& run) {
  const Ints di;
  const std::int32_t* HWY_RESTRICT a = run.a;
  const std::int32_t* HWY_RESTRICT b = run.b;
  for (Index begin = 0; begin < run.pairs; begin += run.group) {
    IntVector acc[R][V];
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 3
      for (int j = 0; j < V; ++j) acc[i][j] = hn::Zero(di);
    }
    const Index end = std::min(run.pairs, begin + run.group);
    for (Index p = begin; p < end; ++p, a += R, b += V * kLanes) {
      IntVector columns[V];
#pragma GCC unroll 3
      for (int j = 0; j < V; ++j) columns[j] = hn::Load(di, b + j * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) {
        const auto row = hn::Set(di, a[i]);
#pragma GCC unroll 3
        for (int j = 0; j < V; ++j) acc[i][j] = add_pair_products<kVnni>(acc[i][j], row, columns[j]);
      }
    }
    const bool fresh = run.first && begin == 0;
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 3
      for (int j = 0; j < V; ++j) {
        std::int32_t* low = run.low + (i * V + j) * kLanes;
        std::int32_t* high = run.high + (i * V + j) * kLanes;
        const auto upper = hn::ShiftRight<16>(acc[i][j]);
        hn::Store(fresh ? acc[i][j] : hn::Add(hn::Load(di, low), acc[i][j]), di, low);
        hn::Store(fresh ? upper : hn::Add(hn::Load(di, high), upper), di, high);
      }
    }
  }
}

template <bool kVnni, int V>
void run_tile_rows(Index rows, const TileRun& run) {
  switch (rows) {
    case 1:
      return run_tile<kVnni, 1, V>(run);
    case 2:
      return run_tile<kVnni, 2, V>(run);
    case 3:
      return run_tile<kVnni, 3, V>(run);
    case 4:
      return run_tile<kVnni, 4, V>(run);
    case 5:
      return run_tile<kVnni, 5, V>(run);
    case 6:
      return run_tile<kVnni, 6, V>(run);
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
    case 7:
      return run_tile<kVnni, 7, V>(run);
    case 8:
      return run_tile<kVnni, 8, V>(run);
#endif
    default:
      return;
  }
}

template <bool kVnni>
HWY_INLINE void run_any_tile(Index rows, Index vectors, const TileRun& run) {
  switch (vectors) {
    case 1:
      return run_tile_rows<kVnni, 1>(rows, run);
    case 2:
      return run_tile_rows<kVnni, 2>(rows, run);
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
    case 3:
      return run_tile_rows<kVnni, 3>(rows, run);
#endif
    default:
      return;
  }
}

// The finished sums of a tile as cells of c.
HWY_INLINE void store_tile(const Fixed15Product& product, Index first_row, Index rows, Index first_column,
                           Index columns, Index vectors, const std::int32_t* low, const std::int32_t* high) {
  const Floats d;
  const Ints di;
  for (Index i = 0; i < rows; ++i) {
    const auto exponent = hn::Set(di, product.a_exponents[first_row + i]);
    float* cells = product.c + (first_row + i) * product.n + first_column;
    for (Index j = 0; j < vectors; ++j) {
      const Index at = (i * vectors + j) * kLanes;
      const auto sum = rounded_sum(hn::Load(di, low + at), hn::Load(di, high + at));
      const auto exponents = hn::Add(exponent, hn::LoadU(di, product.b_exponents + first_column + j * kLanes));
      const auto cell = flush_store(d, hn::Mul(sum, power(exponents)));
      const Index count = std::min(kLanes, columns - j * kLanes);
      if (count == kLanes) {
        hn::StoreU(cell, d, cells + j * kLanes);
      } else {
        hn::BlendedStore(cell, hn::FirstN(d, static_cast<std::size_t>(count)), d, cells + j * kLanes);
      }
    }
  }
}

// One panel of columns for the tiles [first_tile, end_tile); `sums` holds two numbers for each of their cells.
template <bool kVnni>
HWY_INLINE void multiply_block(const Fixed15Product& product, Index panel, Index first_tile, Index end_tile,
                               std::int32_t* sums) {
  const Index first_column = panel * kColumns;
  const Index columns = std::min(kColumns, product.n - first_column);
  const Index vectors = (columns + kLanes - 1) / kLanes;
  const std::int32_t* b = product.b + first_column * product.pairs;
  for (Index first = 0; first < product.pairs; first += kRunPairs) {
    const Index pairs = std::min(kRunPairs, product.pairs - first);
    for (Index tile = first_tile; tile < end_tile; ++tile) {
      const Index first_row = tile * kRows;
      const Index rows = std::min<Index>(kRows, product.m - first_row);
      std::int32_t* low = sums + (tile - first_tile) * 2 * kRows * kColumns;
      std::int32_t* high = low + kRows * kColumns;
      TileRun run;
      run.a = product.a + first_row * product.pairs + first * rows;
      run.b = b + first * vectors * kLanes;
      run.pairs = pairs;
      run.group = group_pairs(product.a_norms[tile], product.b_norms[panel]);
      run.first = first == 0;
      run.low = low;
      run.high = high;
      run_any_tile<kVnni>(rows, vectors, run);
      if (first + pairs == product.pairs) {
        store_tile(product, first_row, rows, first_column, columns, vectors, low, high);
      }
    }
  }
}

void run_block(const Fixed15Product& product, Index panel, Index first_tile, Index end_tile, std::int32_t* sums) {
  multiply_block<false>(product, panel, first_tile, end_tile, sums);
}

void run_block_vnni(const Fixed15Product& product, Index panel, Index first_tile, Index end_tile, std::int32_t* sums) {
  multiply_block<true>(product, panel, first_tile, end_tile, sums);
}

}  // namespace fixed15

using fixed15::pack_rows;
using fixed15::quantize_rows;
using fixed15::run_block;
using fixed15::run_block_vnni;
using fixed15::tile_shape;

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {

HWY_EXPORT(pack_rows);
HWY_EXPORT(quantize_rows);
HWY_EXPORT(run_block);
HWY_EXPORT(run_block_vnni);
HWY_EXPORT(tile_shape);

constexpr Index kBlockRows = 64;               // rows that walk a panel together
constexpr Index kSecondLevelInts = 64 * 1024;  // their pairs should stay in the second-level cache (256 KiB)
constexpr Index kSmallPack = 32 * 1024;        // codes below which one thread packs faster than a team
constexpr Index kSmallProduct = 512 * 1024;    // products below which one thread multiplies faster than a team

Index round_up(Index value, Index unit) { return (value + unit - 1) / unit * unit; }

class QuantizedPanels final : public PreparedWeight {
 public:
  QuantizedPanels(HostMemory& memory, const TileShape& tile, Index n, Index k)
      : n_(n),
        k_(k),
        pairs_(memory, round_up(n, tile.lanes) * ((k + 1) / 2)),
        exponents_(memory, round_up(n, tile.lanes)),
        norms_(memory, (n + tile.columns - 1) / tile.columns) {}
  Index rows() const override { return n_; }
  Index columns() const override { return k_; }
  WeightFormat format() const override { return WeightFormat::float32; }
  std::size_t byte_size() const override { return pairs_.byte_size() + exponents_.byte_size(); }
  std::int32_t* pairs() { return pairs_.data(); }
  std::int32_t* exponents() { return exponents_.data(); }
  Fixed15Norms* norms() { return norms_.data(); }
  const std::int32_t* pairs() const { return pairs_.data(); }
  const std::int32_t* exponents() const { return exponents_.data(); }
  const Fixed15Norms* norms() const { return norms_.data(); }

 private:
  Index n_, k_;
  DeviceArray<std::int32_t> pairs_, exponents_;
  DeviceArray<Fixed15Norms> norms_;
};

template <class T>
T* grown(HostMemory& memory, DeviceArray<T>& array, Index count) {
  if (array.size() < count) array = DeviceArray<T>(memory, count);
  return array.data();
}

// Packs x[rows, k] into groups of `width` rows; a group that is not full is as wide as its rows rounded up to `unit`.
void pack_groups(Context& context, Index rows, Index k, Index width, Index unit, const float* x, std::int32_t* packed,
                 std::int32_t* exponents, Fixed15Norms* norms) {
  const auto pack = SAMBA_CPU_KERNEL(context, pack_rows);
  const Index groups = (rows + width - 1) / width;
  const Index pairs = (k + 1) / 2;
  const auto work = [&](Index first, Index end, int thread) {
    auto* codes = reinterpret_cast<std::int16_t*>(context.scratch(thread, pairs));
    for (Index group = first; group < end; ++group) {
      const Index begin = group * width;
      const Index count = std::min(width, rows - begin);
      pack({x + begin * k, count, k, round_up(count, unit), codes, packed + begin * pairs, exponents + begin,
            norms + group});
    }
  };
  if (rows * k < kSmallPack) {
    const DazScope daz;
    work(0, groups, 0);
  } else {
    context.parallel(groups, 1, work);
  }
}

}  // namespace

Fixed15Cpu::Fixed15Cpu(Context& context) : context_(context), has_vnni_(false) {
#if HWY_ARCH_X86
  has_vnni_ = __builtin_cpu_supports("avx512vnni") != 0;
#endif
}

void Fixed15Cpu::quantize(Index rows, Index k, const float* x, std::int16_t* codes, std::int32_t* exponents) {
  const auto run = SAMBA_CPU_KERNEL(context_, quantize_rows);
  context_.parallel(rows, 1 + kSmallPack / k,
                    [&](Index first, Index end, int) { run(first, end, k, x, codes, exponents); });
}

std::unique_ptr<PreparedWeight> Fixed15Cpu::prepare(Index n, Index k, const float* weight) {
  auto prepared = std::make_unique<QuantizedPanels>(memory_, SAMBA_CPU_KERNEL(context_, tile_shape)(), n, k);
  refresh(*prepared, weight);
  return prepared;
}

void Fixed15Cpu::refresh(PreparedWeight& prepared, const float* weight) {
  auto& panels = static_cast<QuantizedPanels&>(prepared);
  const TileShape tile = SAMBA_CPU_KERNEL(context_, tile_shape)();
  pack_groups(context_, panels.rows(), panels.columns(), tile.columns, tile.lanes, weight, panels.pairs(),
              panels.exponents(), panels.norms());
}

void Fixed15Cpu::linear(const PreparedWeight& weight, Index m, const float* x, float* y) {
  const auto& panels = static_cast<const QuantizedPanels&>(weight);
  const Index n = panels.rows(), k = panels.columns(), pairs = (k + 1) / 2;
  const TileShape tile = SAMBA_CPU_KERNEL(context_, tile_shape)();
  const Index tiles = (m + tile.rows - 1) / tile.rows, panel_count = (n + tile.columns - 1) / tile.columns;
  std::int32_t* packed = grown(memory_, packed_, m * pairs);
  std::int32_t* exponents = grown(memory_, exponents_, m);
  Fixed15Norms* norms = grown(memory_, norms_, tiles);
  pack_groups(context_, m, k, tile.rows, 1, x, packed, exponents, norms);

  const Fixed15Product product{
      m, n, pairs, packed, exponents, norms, panels.pairs(), panels.exponents(), panels.norms(), y};
  const auto run = has_vnni_ ? SAMBA_CPU_KERNEL(context_, run_block_vnni) : SAMBA_CPU_KERNEL(context_, run_block);
  const Index fitting = std::max<Index>(1, kSecondLevelInts / (pairs * tile.rows));
  const Index block = std::min({tiles, fitting, kBlockRows / tile.rows});
  const Index blocks = (tiles + block - 1) / block;
  const Index sums = block * 2 * tile.rows * tile.columns;  // low and high of the block's tiles
  const auto work = [&](Index first, Index end, int thread) {
    auto* own = reinterpret_cast<std::int32_t*>(context_.scratch(thread, sums));
    for (Index unit = first; unit < end; ++unit) {
      const Index first_tile = unit % blocks * block;
      run(product, unit / blocks, first_tile, std::min(tiles, first_tile + block), own);
    }
  };
  if (m * n * k < kSmallProduct) {
    const DazScope daz;
    work(0, panel_count * blocks, 0);
  } else {
    context_.parallel(panel_count * blocks, 1, work);
  }
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
