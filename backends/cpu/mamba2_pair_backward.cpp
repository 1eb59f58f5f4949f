// The backward of Mamba-2 inside the chunks (spec 32 section 4.5): pairs of rows i >= j of one chunk. The sum dG over
// the heads is one chain, so that seg and dM of all heads of a few chunks are kept beside each other:
//
//   1. pair_part:  per (chunk, head) seg, dM, da_seg, dxd, dx, d_dt
//   2. score_part: per (chunk, block of rows) dG
//   3. key_part:   per (chunk, block of rows) dB and dC
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba2_pair_backward.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/mamba2-inl.h"
#include "samba/backends/cpu/mamba2.h"
#include "samba/backends/cpu/scratch_pieces.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace {
using namespace mamba2_lanes;

constexpr Index kPair = Q * Q;
constexpr Index kRowBlock = Q / kMamba2RowBlocks;

// Scratch of one thread in pair_part.
struct Pieces {
  float* xd;            // [256][64]
  float* xd_t;          // [64][256]
  float* weights;       // [256][256] M = G seg
  float* segments_t;    // [256 j][256 i] seg
  float* d_segments_t;  // [256 j][256 i] dseg
  float* d_rows;        // [4][256] dseg of a group of rows
  float* sums;          // [256]
  float* da;            // [256]
};
constexpr Index kPairScratch = 2 * Q * P + 3 * kPair + 6 * Q;
// and in key_part: two sums and one scaled operand of a block of rows.
constexpr Index kKeyScratch = kRowBlock * (2 * N + P);

Index pair_scratch() { return std::max(kPairScratch, kKeyScratch); }

Pieces make_pieces(float* scratch) {
  Pieces s{};
  ScratchPieces take(scratch);
  s.xd = take(Q * P);
  s.xd_t = take(Q * P);
  s.weights = take(kPair);
  s.segments_t = take(kPair);
  s.d_segments_t = take(kPair);
  s.d_rows = take(4 * Q);
  s.sums = take(Q);
  s.da = take(Q);
  return s;
}

const float* upstream(const ChunkOf& c, const Mamba2Gradients& g, Index i) { return g.d_skip + c.cell(i) * P; }

// seg and dM of the rows [row, row + kRows), kept; M, and seg and dseg transposed.
template <int kRows>
void pair_rows(const ChunkOf& c, const Mamba2Gradients& g, const Pieces& s, Index row, float* segments,
               float* d_products) {
  const Index width = round_up_to_lanes(row + kRows);
  for (int r = 0; r < kRows; ++r) {
    advance_sums(s.da, row + r, s.sums);
    for (Index x = 0; x < width; x += kLanes) store(exp(load(s.sums + x)), segments + (row + r) * Q + x);
  }
  const Strided d_y{upstream(c, g, 0), c.call->inner(), 1};
  product_rows<kRows>(d_y, row, s.xd_t, Q, width, 0, P, [&](Index i, Index x, V sum) {
    const V score = load(c.call->scores + c.token(i) * Q + x);
    store(sum, d_products + i * Q + x);
    store(mul(score, load(segments + i * Q + x)), s.weights + i * Q + x);
    store(mul(flush_operand(D(), sum), score), s.d_rows + (i - row) * Q + x);
  });
  transpose(
      kRows, width, [&](Index r) { return s.d_rows + r * Q; }, s.d_segments_t + row, Q);
  transpose(
      kRows, width, [&](Index r) { return segments + (row + r) * Q; }, s.segments_t + row, Q);
}

// Accumulators of da_seg: lanes are places k, every k of j+1..i takes the pair (dseg[i][j], seg[i][j]).
constexpr int kPlaces = 4;
struct Places {
  V sum[kPlaces];
  V place[kPlaces];
};

// One j over the rows [first, last); kMasked: only where j < k <= i.
template <bool kMasked>
HWY_INLINE void take_pairs(Places& k, const Pieces& s, Index j, Index first, Index last) {
  const V column = constant(static_cast<float>(j));
  for (Index i = first; i < last; ++i) {
    const V d_segment = broadcast(s.d_segments_t + j * Q + i), segment = broadcast(s.segments_t + j * Q + i);
    const V row = constant(static_cast<float>(i));
    HWY_UNROLL(4)
    for (int v = 0; v < kPlaces; ++v) {
      const V next = mad(d_segment, segment, k.sum[v]);
      if constexpr (kMasked) {
        const M takes = hn::And(hn::Lt(column, k.place[v]), hn::Le(k.place[v], row));
        k.sum[v] = select(takes, next, k.sum[v]);
      } else {
        k.sum[v] = next;
      }
    }
  }
}

void segment_gradients(const ChunkOf& c, const Mamba2Gradients& g, const Pieces& s) {
  constexpr Index kStep = kPlaces * kLanes;
  for (Index first = 0; first < c.real; first += kStep) {
    Places k;
    for (int v = 0; v < kPlaces; ++v) {
      k.sum[v] = zero();
      k.place[v] = iota(first + v * kLanes);
    }
    const Index end = std::min(c.real, first + kStep - 1);  // from this row on every place is reached
    for (Index j = 0; j < first; ++j) {
      take_pairs<true>(k, s, j, first, end);
      take_pairs<false>(k, s, j, end, c.real);
    }
    for (Index j = first; j < end; ++j) take_pairs<true>(k, s, j, j + 1, c.real);
    HWY_ALIGN float sums[kStep];
    for (int v = 0; v < kPlaces; ++v) store(k.sum[v], sums + v * kLanes);
    for (Index i = first; i < std::min(c.real, first + kStep); ++i) {
      g.d_da_seg[c.cell(i)] = sums[i - first];
      g.d_da[c.cell(i)] = samba::add(g.d_cumsum[c.cell(i)], sums[i - first]);
    }
  }
}

// dxd, which holds dxd_cs, dx and d_dt.
void input_gradients(const ChunkOf& c, const Mamba2Gradients& g, const Pieces& s) {
  const Mamba2Call& call = *c.call;
  const V skip_weight = broadcast(call.d + c.h);
  const Strided weights{s.weights, 1, Q};
  const auto finish = [&](Index j, Index x, V sum) {
    float* d_xd = g.d_xd + c.cell(j) * P + x;
    const V joined = add(sum, load(d_xd));
    store(joined, d_xd);
    const V through_skip = mul(load(upstream(c, g, j) + x), skip_weight);
    store(add(through_skip, mul(joined, constant(c.dt(j)))), g.d_xbc + c.token(j) * call.channels() + c.h * P + x);
  };
  row_groups(0, c.real, [&](auto count, Index row) {
    upper_rows<count()>(weights, row, upstream(c, g, 0), call.inner(), P, c.real, finish);
  });
  row_dots(c.real, P, c.x(0), call.channels(), g.d_xd + c.cell(0) * P, call.inner(), [&](Index i, float chain) {
    g.d_dt[c.cell(i)] = samba::add(samba::mul(g.d_da[c.cell(i)], call.a[c.h]), chain);
  });
}

// Units [first, last) of (chunk, head), the chunks being those from `base` on; pairs: seg and dM of each unit.
void pair_part(const Mamba2Call& call, const Mamba2Gradients& g, Index base, Index first, Index last, float* pairs,
               float* scratch) {
  const Pieces s = make_pieces(scratch);
  for (Index unit = first; unit < last; ++unit) {
    const ChunkOf c = chunk_unit(call, base * call.heads() + unit);
    float* segments = pairs + 2 * unit * kPair;
    gather_inputs(c, s.xd, s.da);
    const Index width = round_up_to_lanes(c.real);
    std::fill(s.xd + c.real * P, s.xd + width * P, 0.0F);
    transpose(
        width, P, [&](Index j) { return s.xd + j * P; }, s.xd_t, Q);
    row_groups(0, c.real, [&](auto count, Index row) { pair_rows<count()>(c, g, s, row, segments, segments + kPair); });
    segment_gradients(c, g, s);
    input_gradients(c, g, s);
  }
}

// Units [first, last) of (chunk, block of rows): dG[i][j] = chain over the heads of mad(dM, seg, .).
void score_part(const Mamba2Call& call, const Mamba2Gradients& g, Index base, Index first, Index last,
                const float* pairs) {
  const Index heads = call.heads(), chunks = call.chunks();
  for (Index unit = first; unit < last; ++unit) {
    const Index chunk = unit / kMamba2RowBlocks, begin = unit % kMamba2RowBlocks * kRowBlock;
    const ChunkOf c(call, (base + chunk) / chunks, (base + chunk) % chunks, 0);
    for (Index i = begin; i < std::min(c.real, begin + kRowBlock); ++i) {
      for (Index x = 0; x <= i; x += kLanes) {
        V sum = zero();
        const float* pair = pairs + 2 * chunk * heads * kPair + i * Q + x;
        for (Index h = 0; h < heads; ++h, pair += 2 * kPair) sum = mad(load(pair + kPair), load(pair), sum);
        store(sum, g.d_scores + c.token(i) * Q + x);
      }
    }
  }
}

// The chains over heads and p of dC_off and dB_cs for `rows` rows from `begin` on. A state of +0 leaves them +0.
template <class Operand>
HWY_INLINE void state_keys(const ChunkOf& chunk, Index begin, Index rows, const float* states, bool zero_state,
                           float* scaled, float* sums, Operand&& operand) {
  const Mamba2Call& call = *chunk.call;
  const auto start = [&](Index i, Index n) { return load(sums + i * N + n); };
  const auto finish = [&](Index i, Index n, V sum) { store(sum, sums + i * N + n); };
  std::fill_n(sums, rows * N, 0.0F);
  for (Index h = 0; h < call.heads(); ++h) {
    const ChunkOf c(call, chunk.b, chunk.c, h);
    for (Index i = 0; i < rows; ++i) operand(c, begin + i, scaled + i * P);
    if (zero_state && all_finite(scaled, rows * P)) continue;
    row_groups(0, rows, [&](auto count, Index row) {
      product_rows_from<count()>(Strided{scaled, P, 1}, row, states + c.chunk_head() * kCells, N, N, 0, P, start,
                                 finish);
    });
  }
}

// Units [first, last) of (batch, chunk, block of rows).
void key_part(const Mamba2Call& call, const Mamba2Gradients& g, Index first, Index last, float* scratch) {
  float* const d_keys = scratch;
  float* const d_queries = d_keys + kRowBlock * N;
  float* const scaled = d_queries + kRowBlock * N;
  for (Index unit = first; unit < last; ++unit) {
    const Index chunk = unit / kMamba2RowBlocks, begin = unit % kMamba2RowBlocks * kRowBlock;
    const ChunkOf c(call, chunk / call.chunks(), chunk % call.chunks(), 0);
    const Index end = std::min(c.real, begin + kRowBlock);
    if (begin >= end) continue;
    state_keys(c, begin, end - begin, g.d_states, c.is_last(), scaled, d_keys,
               [&](const ChunkOf& of, Index i, float* out) {
                 const V dt = constant(of.dt(i)), decay = broadcast(call.decay + of.head_chunk() * Q + i);
                 each_vector(P, [&](Index p) { store(mul(mul(load(of.x(i) + p), dt), decay), out + p); });
               });
    state_keys(c, begin, end - begin, call.pass_states, c.c == 0, scaled, d_queries,
               [&](const ChunkOf& of, Index i, float* out) {
                 const V reach = exp(broadcast(call.dacs + of.head_chunk() * Q + i));
                 each_vector(P, [&](Index p) { store(mul(load(upstream(of, g, i) + p), reach), out + p); });
               });
    const float* d_scores = g.d_scores + c.token(0) * Q;
    const auto out = [&](Index i) { return g.d_xbc + c.token(i) * call.channels() + call.inner(); };
    row_groups(begin, end, [&](auto count, Index row) {
      upper_rows<count()>(
          Strided{d_scores, 1, Q}, row, c.queries().data, call.channels(), N, c.real,
          [&](Index j, Index n, V sum) { store(add(load(d_keys + (j - begin) * N + n), sum), out(j) + n); });
      lower_rows<count()>(Strided{d_scores, Q, 1}, row, c.keys(0), call.channels(), N, 0, [&](Index i, Index n, V sum) {
        store(add(load(d_queries + (i - begin) * N + n), sum), out(i) + N + n);
      });
    });
  }
}

}  // namespace
}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {
HWY_EXPORT(pair_scratch);
HWY_EXPORT(pair_part);
HWY_EXPORT(score_part);
HWY_EXPORT(key_part);
}  // namespace

float* Mamba2Cpu::pairs(Index count) {
  if (pairs_.size() < count) pairs_ = DeviceArray<float>(memory_, count);
  return pairs_.data();
}

void Mamba2Cpu::pair_backward(const Mamba2Call& call, const Mamba2Gradients& gradients) {
  constexpr Index kPair = mamba2::kChunk * mamba2::kChunk;
  const Index heads = call.heads(), chunks = call.batch * call.chunks();
  const Index threads = context_.threads();
  const Index together = std::min(chunks, (2 * threads + heads - 1) / heads);  // enough units for the threads
  const Index floats = SAMBA_CPU_KERNEL(context_, pair_scratch)();
  float* const kept = pairs(together * heads * 2 * kPair);
  for (Index base = 0; base < chunks; base += together) {
    const Index count = std::min(together, chunks - base);
    context_.parallel(count * heads, 1, [&](Index first, Index last, int thread) {
      SAMBA_CPU_KERNEL(context_, pair_part)
      (call, gradients, base, first, last, kept, context_.scratch(thread, floats));
    });
    context_.parallel(count * kMamba2RowBlocks, 1, [&](Index first, Index last, int) {
      SAMBA_CPU_KERNEL(context_, score_part)(call, gradients, base, first, last, kept);
    });
  }
  context_.parallel(chunks * kMamba2RowBlocks, 1, [&](Index first, Index last, int thread) {
    SAMBA_CPU_KERNEL(context_, key_part)(call, gradients, first, last, context_.scratch(thread, floats));
  });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
