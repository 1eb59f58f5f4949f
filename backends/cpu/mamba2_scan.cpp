// The chunked core of Mamba-2 (spec 31 section 3) with the step sizes, the D skip and the gate (S8, S18, S19):
//
//   1. step_part:    dt of every working row
//   2. score_part:   G = C B^T of the new rows, shared by the heads, by blocks of 64 rows
//   3. head_part:    per (batch, chunk, head) Y_diag and the chunk's own state; in a call of one chunk all the rest too
//   4. pass_part:    the states entering the chunks, serial over chunks
//   5. output_part:  per (batch, chunk, head) Y_off, skip and gate
//
// A step has kernels of its own (mamba2_step.cpp) and, where it completes the chunk, close_part behind them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba2_scan.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/mamba2-inl.h"
#include "samba/backends/cpu/mamba2.h"
#include "samba/backends/cpu/scratch_pieces.h"
#include "samba/backends/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace {
using namespace mamba2_lanes;

void step_part(const Mamba2Call& call, Index first, Index last) { step_sizes(call, first, last); }

constexpr Index kScoreRows = Q / kMamba2ScoreBlocks;

Index score_scratch() { return N * Q; }

// Units [first, last) of (batch, chunk, block of rows).
void score_part(const Mamba2Call& call, Index first, Index last, float* keys_t) {
  for (Index unit = first; unit < last; ++unit) {
    const Index chunk = unit / kMamba2ScoreBlocks;
    const ChunkOf c(call, chunk / call.chunks(), chunk % call.chunks(), 0);
    const Index begin = std::max(unit % kMamba2ScoreBlocks * kScoreRows, c.first_new);
    const Index end = std::min((unit % kMamba2ScoreBlocks + 1) * kScoreRows, c.real);
    if (begin >= end) continue;
    transpose_state_rows(c, call.inner(), end, keys_t);
    row_groups(begin, end, [&](auto count, Index row) {
      product_rows<count()>(c.queries(), row, keys_t, Q, round_up_to_lanes(row + count()), 0, N,
                            [&](Index i, Index x, V sum) { store(sum, call.scores + c.token(i) * Q + x); });
    });
  }
}

// Scratch of one thread.
struct Pieces {
  float* xd;       // [256][64]
  float* decayed;  // [128][kPackedWidth] columns of B times the decay to the end of the chunk
  float* state_t;  // [128][64] the state entering the chunk
  float* own;      // [64][128] the chunk's own state
  float* weights;  // [4][256] M of a group of rows
  float* leaf;     // [4][64] the first leaf of Y_diag
  float* sums;     // [256] segment sums
  float* da;       // [256]
  float* reach;    // [256] exp(dacs)
  bool finite;     // xd
};
constexpr Index kDecayed = Q / 2 * kPackedWidth;
constexpr Index kScratch = Q * P + kDecayed + 2 * kCells + 4 * Q + 4 * P + 3 * Q;

Index head_scratch() { return kScratch; }

Pieces make_pieces(float* scratch) {
  Pieces s{};
  ScratchPieces take(scratch);
  s.xd = take(Q * P);
  s.decayed = take(kDecayed);
  s.state_t = take(kCells);
  s.own = take(kCells);
  s.weights = take(4 * Q);
  s.leaf = take(4 * P);
  s.sums = take(Q);
  s.da = take(Q);
  s.reach = take(Q);
  return s;
}

void read_reach(const ChunkOf& c, const Pieces& s) {
  const float* dacs = c.call->dacs + c.head_chunk() * Q;
  each_vector(Q, [&](Index i) { store(exp(load(dacs + i)), s.reach + i); });
}

// Steps 1, 2 and the exponentials of 6 and 9.
void gather_head(const ChunkOf& c, Pieces& s) {
  gather_inputs(c, s.xd, s.da);
  s.finite = all_finite(s.xd, c.real * P);
  float* dacs = c.call->dacs + c.head_chunk() * Q;
  float* decay = c.call->decay + c.head_chunk() * Q;
  dacs[0] = s.da[0];
  for (Index i = 1; i < Q; ++i) dacs[i] = i < c.real ? samba::add(dacs[i - 1], s.da[i]) : dacs[i - 1];
  const V last = broadcast(dacs + Q - 1);
  each_vector(Q, [&](Index i) { store(exp(sub(last, load(dacs + i))), decay + i); });
  read_reach(c, s);
  if (c.call->x_d == nullptr) return;
  for (Index i = c.first_new; i < c.real; ++i) std::copy_n(s.xd + i * P, P, c.call->x_d + c.cell(i) * P);
}

// Rows [row, row + rows) of M, +0 above the diagonal up to the column after the group.
void weigh_rows(const ChunkOf& c, const Pieces& s, Index row, Index rows) {
  const Index width = round_up_to_lanes(row + rows);
  for (Index r = 0; r < rows; ++r) {
    advance_sums(s.da, row + r, s.sums);
    const float* scores = c.call->scores + c.token(row + r) * Q;
    for (Index x = 0; x < width; x += kLanes) {
      const V weight = mul(load(scores + x), exp(load(s.sums + x)));
      store(select(up_to(x, row + r), weight, zero()), s.weights + r * Q + x);
    }
  }
}

// One leaf of Y_diag over all its 128 columns, as the matrix product has them (section 4).
V full_leaf(const ChunkOf& c, const Pieces& s, const float* weights, Index row, Index first, Index x) {
  V sum = zero();
  for (Index j = first; j < first + Q / 2; ++j) {
    const V weight = j <= row ? broadcast(weights + j) : zero();
    sum = mad(weight, j < c.real ? load(s.xd + j * P + x) : zero(), sum);
  }
  return sum;
}

// Y_diag of the rows [row, row + kRows), which lie in one half of the chunk, into skip.
template <int kRows>
void diagonal_rows(const ChunkOf& c, const Pieces& s, Index row) {
  weigh_rows(c, s, row, kRows);
  const Mamba2Call& call = *c.call;
  const Strided weights{s.weights, Q, 1, row};
  const auto write = [&](Index i, Index x, V y) {
    store(y, call.skip + c.cell(i) * P + x);
    if (call.y_diag != nullptr) store(y, call.y_diag + c.cell(i) * P + x);
  };
  if (!s.finite) {
    for (int r = 0; r < kRows; ++r) {
      const Index i = row + r;
      const float* own = s.weights + r * Q;
      each_vector(P,
                  [&](Index x) { write(i, x, add(full_leaf(c, s, own, i, 0, x), full_leaf(c, s, own, i, Q / 2, x))); });
    }
    return;
  }
  if (row < Q / 2) {
    // The second leaf is +0 and is added; it also settles the sign of a zero.
    product_rows<kRows>(weights, row, s.xd, P, P, 0, row + kRows,
                        [&](Index i, Index x, V sum) { write(i, x, add(sum, zero())); });
    return;
  }
  product_rows<kRows>(weights, row, s.xd, P, P, 0, Q / 2,
                      [&](Index i, Index x, V sum) { store(sum, s.leaf + (i - row) * P + x); });
  product_rows<kRows>(weights, row, s.xd, P, P, Q / 2, row + kRows, [&](Index i, Index x, V sum) {
    if (has_negative_zero(flush_store(D(), sum))) {
      sum = full_leaf(c, s, s.weights + (i - row) * Q, i, Q / 2, x);
    }
    write(i, x, add(load(s.leaf + (i - row) * P + x), sum));
  });
}

void diagonal_outputs(const ChunkOf& c, const Pieces& s) {
  for (Index i = 0; i < c.first_new; ++i) advance_sums(s.da, i, s.sums);
  const auto group = [&](auto count, Index row) { diagonal_rows<count()>(c, s, row); };
  const Index half = std::clamp(Q / 2, c.first_new, c.real);
  row_groups(c.first_new, half, group);
  row_groups(half, c.real, group);
}

// finish(p, n, vector) of the leaf of step 7 over the rows [first, end).
template <class Finish>
void state_leaf(const ChunkOf& c, const Pieces& s, Index first, Index end, Finish&& finish) {
  const float* decay = c.call->decay + c.head_chunk() * Q;
  packed_product(
      P, Strided{s.xd + first * P, 1, P}, N, end - first,
      [&](Index i, Index n) { return mul(load(c.keys(first + i) + n), broadcast(decay + first + i)); }, s.decayed,
      finish);
}

// Step 7. Rows that are missing are terms +0 * +0: they turn a -0 into +0.
void own_state(const ChunkOf& c, const Pieces& s, float* out) {
  const bool short_first = c.real < Q / 2, short_second = c.real < Q;
  state_leaf(c, s, 0, std::min(c.real, Q / 2),
             [&](Index p, Index n, V sum) { store(short_first ? add(sum, zero()) : sum, out + p * N + n); });
  if (c.real <= Q / 2) {
    each_vector(kCells, [&](Index i) { store(add(load(out + i), zero()), out + i); });
  } else {
    state_leaf(c, s, Q / 2, c.real, [&](Index p, Index n, V sum) {
      if (short_second) sum = add(sum, zero());
      store(add(load(out + p * N + n), sum), out + p * N + n);
    });
  }
  if (c.call->chunk_states != nullptr) std::copy_n(out, kCells, c.call->chunk_states + c.chunk_head() * kCells);
}

// Steps 9 and 10, S18 and S19 of the new rows. `entering` null: +0.
void chunk_outputs(const ChunkOf& c, const Pieces& s, const float* entering) {
  const Mamba2Call& call = *c.call;
  const Strided queries = c.queries();
  const auto finish = [&](Index i, Index x, V sum) {
    const Index out = c.cell(i) * P + x;
    const V y_off = mul(sum, broadcast(s.reach + i));
    const V y = add(load(call.skip + out), y_off);
    if (call.y_off != nullptr) store(y_off, call.y_off + out);
    if (call.y != nullptr) store(y, call.y + out);
    write_output(c, i, x, y);
  };
  if (entering == nullptr && rows_finite(queries.data, queries.row_stride, c.real - c.first_new, N)) {
    for (Index i = c.first_new; i < c.real; ++i) each_vector(P, [&](Index x) { finish(i, x, zero()); });
    return;
  }
  if (entering == nullptr) {
    std::fill_n(s.state_t, kCells, 0.0F);
  } else {
    transpose(
        P, N, [&](Index p) { return entering + p * N; }, s.state_t, P);
  }
  product(c.first_new, c.real, queries, s.state_t, P, P, N, finish);
}

// A call of one chunk: `state` (null: +0) enters; it is replaced when the chunk is complete.
void only_chunk(const ChunkOf& c, const Pieces& s, float* state) {
  const Mamba2Call& call = *c.call;
  const Index sequence = c.b * call.heads() + c.h;
  if (call.pass_states != nullptr) {
    float* pass = call.pass_states + sequence * kCells;
    if (state == nullptr) {
      std::fill_n(pass, kCells, 0.0F);
    } else {
      std::copy_n(state, kCells, pass);
    }
  }
  chunk_outputs(c, s, state);
  float* completed = c.real == Q ? state : nullptr;
  float* report = call.h_last == nullptr ? nullptr : call.h_last + sequence * kCells;
  if (completed == nullptr && report == nullptr && call.chunk_states == nullptr) return;
  own_state(c, s, s.own);
  const V carry = broadcast(s.reach + Q - 1);
  each_vector(kCells, [&](Index i) {
    const V next = mad(carry, state == nullptr ? zero() : load(state + i), load(s.own + i));
    if (completed != nullptr) store(next, completed + i);
    if (report != nullptr) store(next, report + i);
  });
}

// Units [first, last) of (batch, head): the state behind a chunk that a step has completed.
void close_part(const Mamba2Call& call, Index first, Index last, float* scratch) {
  Pieces s = make_pieces(scratch);
  for (Index unit = first; unit < last; ++unit) {
    const ChunkOf c = chunk_unit(call, unit);
    gather_head(c, s);
    own_state(c, s, s.own);
    float* const state = call.h + unit * kCells;
    const V carry = broadcast(s.reach + Q - 1);
    each_vector(kCells, [&](Index i) { store(mad(carry, load(state + i), load(s.own + i)), state + i); });
  }
}

// Units [first, last) of (batch, chunk, head).
void head_part(const Mamba2Call& call, Index first, Index last, float* scratch) {
  Pieces s = make_pieces(scratch);
  for (Index unit = first; unit < last; ++unit) {
    const ChunkOf c = chunk_unit(call, unit);
    gather_head(c, s);
    diagonal_outputs(c, s);
    if (call.chunks() == 1) {
      only_chunk(c, s, call.h == nullptr ? nullptr : call.h + unit * kCells);
    } else if (!c.is_last() || call.h_last != nullptr || call.chunk_states != nullptr || c.real == Q) {
      own_state(c, s, call.pass_states + unit * kCells);
    }
  }
}

// Step 8 for the sequences [first, last) of (batch, head): pass_states holds the chunks' own states, then those that
// enter them. The first one is the caller's, bit for bit.
void pass_part(const Mamba2Call& call, Index first, Index last, float* state) {
  const Index heads = call.heads(), chunks = call.chunks();
  for (Index sequence = first; sequence < last; ++sequence) {
    const Index b = sequence / heads, h = sequence % heads;
    float* stored = call.h == nullptr ? nullptr : call.h + sequence * kCells;
    if (stored == nullptr) {
      std::fill_n(state, kCells, 0.0F);
    } else {
      std::copy_n(stored, kCells, state);
    }
    for (Index c = 0; c < chunks; ++c) {
      float* pass = call.pass_states + call.chunk_head(b, c, h) * kCells;
      const bool completed = call.real_rows(c) == Q;
      if (!completed && stored != nullptr) std::copy_n(state, kCells, stored);
      if (!completed && call.h_last == nullptr) {
        std::copy_n(state, kCells, pass);
        continue;
      }
      const V carry = exp(broadcast(call.dacs + call.head_chunk(b, h, c) * Q + Q - 1));
      each_vector(kCells, [&](Index i) {
        const V entering = hn::LoadU(D(), state + i);
        store(mad(carry, flush_operand(D(), entering), load(pass + i)), state + i);
        hn::StoreU(entering, D(), pass + i);
      });
      if (completed && c + 1 == chunks && stored != nullptr) std::copy_n(state, kCells, stored);
    }
    if (call.h_last != nullptr) std::copy_n(state, kCells, call.h_last + sequence * kCells);
  }
}

// Units [first, last) of (batch, chunk, head).
void output_part(const Mamba2Call& call, Index first, Index last, float* scratch) {
  const Pieces s = make_pieces(scratch);
  for (Index unit = first; unit < last; ++unit) {
    const ChunkOf c = chunk_unit(call, unit);
    read_reach(c, s);
    const bool zero_state = c.c == 0 && call.h == nullptr;
    chunk_outputs(c, s, zero_state ? nullptr : call.pass_states + unit * kCells);
  }
}

}  // namespace
}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {
HWY_EXPORT(step_part);
HWY_EXPORT(score_scratch);
HWY_EXPORT(score_part);
HWY_EXPORT(head_scratch);
HWY_EXPORT(head_part);
HWY_EXPORT(close_part);
HWY_EXPORT(pass_part);
HWY_EXPORT(output_part);

constexpr Index kStepGrain = 1024;  // step sizes a thread should have
}  // namespace

void Mamba2Cpu::scan(const Mamba2Call& call) {
  const Index floats = SAMBA_CPU_KERNEL(context_, head_scratch)();
  // Steps too reserve what the one that closes a chunk takes: none of them allocates behind the first.
  for (int thread = 0; thread < context_.threads(); ++thread) context_.scratch(thread, floats);
  const Index units = call.batch * call.chunks() * call.heads();
  if (is_step(call)) {
    step(call);
    if (call.working_rows() < mamba2::kChunk) return;
    return context_.parallel(units, 1, [&](Index first, Index last, int thread) {
      SAMBA_CPU_KERNEL(context_, close_part)(call, first, last, context_.scratch(thread, floats));
    });
  }
  context_.parallel(call.batch * call.working_rows(), std::max<Index>(1, kStepGrain / call.heads()),
                    [&](Index first, Index last, int) {
                      SAMBA_CPU_KERNEL(context_, step_part)
                      (call, first, last);
                    });
  const Index score_floats = SAMBA_CPU_KERNEL(context_, score_scratch)();
  context_.parallel(call.batch * call.chunks() * kMamba2ScoreBlocks, 1, [&](Index first, Index last, int thread) {
    SAMBA_CPU_KERNEL(context_, score_part)(call, first, last, context_.scratch(thread, score_floats));
  });
  context_.parallel(units, 1, [&](Index first, Index last, int thread) {
    SAMBA_CPU_KERNEL(context_, head_part)(call, first, last, context_.scratch(thread, floats));
  });
  if (call.chunks() == 1) return;
  context_.parallel(call.batch * call.heads(), 1, [&](Index first, Index last, int thread) {
    SAMBA_CPU_KERNEL(context_, pass_part)(call, first, last, context_.scratch(thread, floats));
  });
  context_.parallel(units, 1, [&](Index first, Index last, int thread) {
    SAMBA_CPU_KERNEL(context_, output_part)(call, first, last, context_.scratch(thread, floats));
  });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
