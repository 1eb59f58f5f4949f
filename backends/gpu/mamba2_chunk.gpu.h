// What the kernels of Mamba-2 share: the rows of a chunk, the decays inside it, the blocks of a launch.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/backends/gpu/panels.gpu.h"
#include "samba/kernels/mamba2.h"

namespace samba::SAMBA_GPU {

namespace {

using mamba2::kCells;
using mamba2::kChunk;
using mamba2::kHeadDim;
using mamba2::kStateSize;

inline constexpr int kRows = static_cast<int>(kChunk);
inline constexpr int kTiles = kRows / kTile;  // of the rows of a chunk
inline constexpr int kLeafRows = kRows / 2;   // a leaf of the chunk products
inline constexpr int kStartRows = 16;         // rows between two segment sums that are kept
inline constexpr int kStarts = kRows / kStartRows;
inline constexpr int kStateColumns = static_cast<int>(kStateSize);
static_assert(kHeadDim == kTile && kRows == kTileThreads);

SAMBA_DEVICE float exp_flushed(float x) { return flush(elementary::exp(x)); }
SAMBA_DEVICE float sigmoid_flushed(float x) { return flush(elementary::sigmoid(flush(x))); }

// One chunk of one batch row; rows at and after `real` are +0.
struct ChunkRows {
  Index b, c;
  int real;

  SAMBA_DEVICE const float* xbc(const Mamba2Call& call, int i) const {
    const Index t = c * kChunk + i;
    return t < call.buffered ? call.buffer_xbc + (b * kChunk + t) * call.channels()
                             : call.x_bc + (b * call.tokens + t - call.buffered) * call.channels();
  }
  SAMBA_DEVICE float dt(const Mamba2Call& call, Index h, int i) const {
    return call.dt[(b * call.working_rows() + c * kChunk + i) * call.heads() + h];
  }
  SAMBA_DEVICE float da(const Mamba2Call& call, Index h, int i) const { return mul(dt(call, h, i), call.a[h]); }
  SAMBA_DEVICE float x_d(const Mamba2Call& call, Index h, int i, int p) const {
    return mul(xbc(call, i)[h * kHeadDim + p], dt(call, h, i));
  }
  SAMBA_DEVICE float key(const Mamba2Call& call, int i, int n) const { return xbc(call, i)[call.inner() + n]; }
  SAMBA_DEVICE float query(const Mamba2Call& call, int i, int n) const {
    return xbc(call, i)[call.inner() + kStateSize + n];
  }
};

// Mamba2Call::real_rows for the device, where std::min could not take a constant of the host by reference.
SAMBA_DEVICE Index real_rows(const Mamba2Call& call, Index c) {
  const Index left = call.working_rows() - c * kChunk;
  return left < kChunk ? left : kChunk;
}

// Chunk number `index` of (batch, C).
SAMBA_DEVICE ChunkRows chunk_rows(const Mamba2Call& call, Index index) {
  const Index c = index % call.chunks();
  return {index / call.chunks(), c, static_cast<int>(real_rows(call, c))};
}

// A launch whose x counts (chunk, tile) and y the heads.
inline Grid chunk_grid(Index chunks, Index tiles, Index heads) {
  return {static_cast<unsigned>(chunks * tiles), static_cast<unsigned>(heads)};
}

// Rows of tile `tile` of the chunk that are real.
SAMBA_DEVICE int tile_rows(const ChunkRows& rows, int tile) {
  const int left = rows.real - tile * kTile;
  return left < 0 ? 0 : left < kTile ? left : kTile;
}

// Segment sums are chains down the rows, one a column. The kernels that need them for a tile begin from the sums that
// are kept every kStartRows rows: starts[(b, H, C), r, j] is that of column j before row kStartRows r.
SAMBA_DEVICE const float* starts_of(const Mamba2Call& call, const float* starts, const ChunkRows& rows, Index h) {
  return starts + call.head_chunk(rows.b, h, rows.c) * kStarts * kChunk;
}

// Calls body(i, j, decay) with decay = exp(segment sum) for the rows i of tile `i_tile` and the columns j of tile
// `j_tile`, j <= i < real: each thread a column and kStartRows rows. das: the tile's dA in shared memory.
template <class Body>
SAMBA_DEVICE void for_segments(const float* starts, const float* das, int i_tile, int j_tile, int real, Body&& body) {
  const int thread = static_cast<int>(thread_index());
  const int j = j_tile * kTile + thread % kTile;
  const int first = i_tile * kTile + thread / kTile * kStartRows;
  float sum = starts[first / kStartRows * kRows + j];
  for (int i = first; i < first + kStartRows && i < real; ++i) {
    if (i < j) continue;
    if (i > j) sum = add(sum, das[i - i_tile * kTile]);
    body(i, j, exp_flushed(sum));
  }
}

// das[r] = dA of the rows of the tile.
SAMBA_DEVICE void load_das(const Mamba2Call& call, const ChunkRows& rows, Index h, int tile, float* das) {
  const int i = tile * kTile + static_cast<int>(thread_index());
  if (thread_index() < kTile && i < rows.real) das[thread_index()] = rows.da(call, h, i);
}

// BLOCKSUM of spec 32 section 2: blocks of 256 rows, one thread each and column; joined from the first block's sum.
inline constexpr Index kBlockSum = 256;

// partials[block, j]: step(t, j, sum) gives the sum after row t.
template <class Step>
struct BlockChains {
  Index rows, width;
  Step step;
  float* partials;
  SAMBA_DEVICE void operator()(Index at) const {
    const Index first = at / width * kBlockSum, j = at % width;
    const Index end = first + kBlockSum < rows ? first + kBlockSum : rows;
    float sum = 0.0F;
    for (Index t = first; t < end; ++t) sum = step(t, j, sum);
    partials[at] = sum;
  }
};

// store(j, sum)
template <class Store>
struct JoinBlocks {
  Index blocks, width;
  const float* partials;
  Store store;
  SAMBA_DEVICE void operator()(Index j) const {
    float total = partials[j];
    for (Index i = 1; i < blocks; ++i) total = add(total, partials[i * width + j]);
    store(j, total);
  }
};

template <class Step, class Store>
void block_sums(Context& context, Index rows, Index width, const Step& step, const Store& store) {
  const Workspace::Scope scope(context.workspace());
  const Index blocks = (rows + kBlockSum - 1) / kBlockSum;
  float* partials = context.workspace().floats(blocks * width);
  for_each(context, blocks * width, BlockChains<Step>{rows, width, step, partials});
  for_each(context, width, JoinBlocks<Store>{blocks, width, partials, store});
}

}  // namespace

}  // namespace samba::SAMBA_GPU
