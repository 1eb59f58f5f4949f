// Mamba-3, the long chains of version 1's backward: dq16 and dk16 over (p, pair) (spec 41 section 3.4), a thread each,
// and the tail chain of a chunk (section 3.7 step 5), one thread of a block, to which the others hand the terms.
#pragma once

#include "samba/backends/gpu/mamba3_scan.gpu.h"
#include "samba/backends/gpu/mamba3_tokens.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

// What the kernels of the scan's backward take.
struct ScanBackward {
  Mamba3Call call;
  Mamba3Gradients g;
};

SAMBA_DEVICE const float* dy_row(const ScanBackward& s, const ChunkPlace& at, int i) {
  return s.g.d_skip + new_row(s.call, at, i) * kP;
}
SAMBA_DEVICE const float* key_row(const ScanBackward& s, const ChunkPlace& at, int i) {
  return s.call.k_scaled + new_row(s.call, at, i) * kN;
}
SAMBA_DEVICE const float* query_row(const ScanBackward& s, const ChunkPlace& at, int i) {
  return s.call.current.q + new_row(s.call, at, i) * kN;
}
SAMBA_DEVICE const float* value_row(const ScanBackward& s, const ChunkPlace& at, int i) {
  return v_row(s.call, at.b, at.h, at.first + i);
}
// E: the gradient of the state that leaves the chunk; null stands for +0.0
SAMBA_DEVICE const float* leaving_gradient(const ScanBackward& s, const ChunkPlace& at) {
  if (at.c + 1 == s.call.chunks()) return nullptr;
  return s.g.state_gradients + state_index(s.call, at) + s.call.heads() * kStateCells;
}

inline constexpr int kTablePitch = kQ + 4;
inline constexpr int kPairRun = 4;  // pairs that are taken together

enum class PairGradient { query, key };

// The chain over p and the pairs x in [first, end), p outer. Query: mad(own[p], keys[x] table[p, x], .); key:
// mad(table[p, x], keys[x] own[p], .).
template <PairGradient kOf, bool kFlushProducts, bool kFlushSums>
SAMBA_DEVICE float pair_chain(const float (&keys)[kQ], const FloatRun<4>* table, const float* own, int first, int end) {
  float sum = 0.0F;
  const auto step = [&](float key, float other, float mine) {
    float product = kOf == PairGradient::query ? key * other : key * mine;
    if (kFlushProducts) product = flush(product);
    sum = kOf == PairGradient::query ? fma(mine, product, sum) : fma(other, product, sum);
    if (kFlushSums) sum = flush(sum);
  };
  for (int p = 0; p < kP; ++p) {
    const FloatRun<4>* row = table + p * kTablePitch / 4;
    const float mine = own[p];
    SAMBA_UNROLL
    for (int run = 0; run < kQ; run += kPairRun) {
      if (run + kPairRun <= first || run >= end) continue;
      const FloatRun<4> others = row[run / 4];
      if (run >= first && run + kPairRun <= end) {
        SAMBA_UNROLL
        for (int x = 0; x < kPairRun; ++x) step(keys[run + x], others.values[x], mine);
      } else {
        SAMBA_UNROLL
        for (int x = 0; x < kPairRun; ++x) {
          if (run + x >= first && run + x < end) step(keys[run + x], others.values[x], mine);
        }
      }
    }
  }
  return sum;
}

// One new row (token and head) a block, one element n a thread.
template <PairGradient kOf>
SAMBA_KERNEL(kN)
pair_chains(ScanBackward s) {
  constexpr bool kQuery = kOf == PairGradient::query;
  SAMBA_SHARED(FloatRun<4>, table, kP * kTablePitch / 4);  // [p, x]: v_x[p], of keys dY_x[p]
  SAMBA_SHARED(float, own, kP);                            // dY[p] of the row, of keys v[p]
  SAMBA_SHARED(int, smallest, kN);  // exponents of keys, table and own, of each thread: a byte each
  const Index heads = s.call.heads(), m = static_cast<Index>(block_x()) / heads, t = m % s.call.tokens;
  const Index unit = (m / s.call.tokens * heads + static_cast<Index>(block_x()) % heads) * s.call.chunks() + t / kQ;
  const ChunkPlace at = chunk_place(s.call, unit, 0, s.call.chunks());
  const int n = static_cast<int>(thread_index()), pos = static_cast<int>(t - at.first);
  const int first = kQuery ? 0 : pos + 1, end = kQuery ? pos : at.real;

  int of_table = kNoExponent, of_own = kNoExponent, of_keys = kNoExponent;
  for (int e = first * kP + n; e < end * kP; e += kN) {
    const int x = e / kP, p = e % kP;
    const float value = flush(kQuery ? value_row(s, at, x)[p] : dy_row(s, at, x)[p]);
    reinterpret_cast<float*>(table)[p * kTablePitch + x] = value;
    of_table = smaller_exponent(of_table, value);
  }
  if (n < kP) {
    own[n] = flush(kQuery ? dy_row(s, at, pos)[n] : value_row(s, at, pos)[n]);
    of_own = smaller_exponent(of_own, own[n]);
  }
  const float* decay = s.call.decay + chunk_index(s.call, at) * kQ * kQ;
  float keys[kQ];
  SAMBA_UNROLL
  for (int x = 0; x < kQ; ++x) {
    keys[x] = 0.0F;
    if (x < first || x >= end) continue;
    keys[x] =
        kQuery ? mul(key_row(s, at, x)[n], decay[pos * kQ + x]) : mul(query_row(s, at, x)[n], decay[x * kQ + pos]);
    of_keys = smaller_exponent(of_keys, keys[x]);
  }
  smallest[n] = of_keys | of_table << 8 | of_own << 16;
  barrier();
  SAMBA_UNROLL
  for (int thread = 0; thread < kN; ++thread) {
    const int of = smallest[thread];
    of_keys = (of & 255) < of_keys ? of & 255 : of_keys;
    of_table = (of >> 8 & 255) < of_table ? of >> 8 & 255 : of_table;
    of_own = of >> 16 < of_own ? of >> 16 : of_own;
  }
  // Products of keys and the one factor are normal or zero; then so are sums when the products with the other factor
  // are multiples of 2^-126.
  const int of_products = of_keys + (kQuery ? of_table : of_own);
  const bool normal = of_products >= -126 + 2 * 127;
  const bool safe = normal && of_products + (kQuery ? of_own : of_table) >= -80 + 3 * 127;
  float sum;
  if (safe) {
    sum = pair_chain<kOf, false, false>(keys, table, own, first, end);
  } else if (normal) {
    sum = pair_chain<kOf, false, true>(keys, table, own, first, end);
  } else {
    sum = pair_chain<kOf, true, true>(keys, table, own, first, end);
  }
  (kQuery ? s.g.d_q16 : s.g.d_k16)[static_cast<Index>(block_x()) * kN + n] = sum;
}

inline constexpr int kTailThreads = 128;
inline constexpr int kTailMakers = 64;  // the upper threads make the terms, thread 0 sums
inline constexpr int kTailRows = 8;     // rows p of a slice
inline constexpr int kTailTerms = kTailRows * kN;
inline constexpr int kTailSlices = kP / kTailRows;  // of one row of the chunk

// The chain over the products of a slice. A normal sum keeps off the flushes when it too is a multiple of 2^-126.
template <bool kFlush>
SAMBA_DEVICE float tail_steps(float sum, const FloatRun<4>* gradients, const FloatRun<4>* terms) {
  for (int x = 0; x < kTailTerms / 4; ++x) {
    const FloatRun<4> a = gradients[x], b = terms[x];
    SAMBA_UNROLL
    for (int y = 0; y < 4; ++y) {
      sum = fma(a.values[y], b.values[y], sum);
      if (kFlush) sum = flush(sum);
    }
  }
  return sum;
}

SAMBA_DEVICE bool tail_is_safe(float sum, int exponents) {
  return exponents >= kSafeExponents && smaller_exponent(kNoExponent, sum) >= -126 + 23 + 127;
}

// Whether E = +0 of the last chunk may meet a term that is not finite: large values count as such.
SAMBA_DEVICE bool tail_is_finite(const ScanBackward& s, const ChunkPlace& at, int thread) {
  constexpr float kLarge = 0x1p63F;
  const float* entering = s.call.pass_states + state_index(s.call, at);
  bool finite = is_finite(s.call.dacs[chunk_index(s.call, at) * kQ + kQ - 1]);
  for (int e = thread; e < at.real * kN; e += kTailThreads) {
    const float key = key_row(s, at, e / kN)[e % kN];
    finite = finite && key < kLarge && key > -kLarge;
  }
  for (int e = thread; e < at.real * kP; e += kTailThreads) {
    const float v = value_row(s, at, e / kP)[e % kP];
    finite = finite && v < kLarge && v > -kLarge;
  }
  for (int e = thread; e < kStateCells; e += kTailThreads) finite = finite && is_finite(entering[e]);
  return finite;
}

// d_dacs_rec of the chunk's last row gets the chain over (j, p, n), then over (p, n).
SAMBA_KERNEL(kTailThreads) tail_chains(ScanBackward s) {
  SAMBA_SHARED(FloatRun<4>, gradients, kTailTerms / 2);
  SAMBA_SHARED(FloatRun<4>, terms, kTailTerms / 2);
  SAMBA_SHARED(int, smallest, 4);  // exponents of both, of the two slices in work
  SAMBA_SHARED(int, finite, kTailThreads);
  const ChunkPlace at = chunk_place(s.call, block_x(), 0, s.call.chunks());
  const int thread = static_cast<int>(thread_index());
  const float* leaving = leaving_gradient(s, at);
  const float* entering = s.call.pass_states + state_index(s.call, at);
  const float* da = s.call.dacs + chunk_index(s.call, at) * kQ;
  float& end = s.g.d_dacs_rec[new_row(s.call, at, at.real - 1)];
  if (leaving == nullptr) {
    finite[thread] = tail_is_finite(s, at, thread) ? 1 : 0;
    barrier();
    bool all = true;
    for (int i = 0; i < kTailThreads; ++i) all = all && finite[i] != 0;
    if (all) {
      if (thread == 0) end = add(end, 0.0F);
      return;
    }
  }

  const int maker = thread - (kTailThreads - kTailMakers);
  const int slices = (at.real + 1) * kTailSlices;
  float sum = 0.0F;
  // In turn `turn` slice turn - 1 is made and slice turn - 2 is summed.
  for (int turn = 0; turn < slices + 2; ++turn) {
    const int made = turn - 1, summed = turn - 2;
    if (maker >= 0 && made >= 0 && made < slices) {
      const int buffer = made % 2, j = made / kTailSlices, first = made % kTailSlices * kTailRows;
      const float decay = exp_flushed(j < at.real ? sub(da[kQ - 1], da[j]) : da[kQ - 1]);
      int of_gradients = kNoExponent, of_terms = kNoExponent;
      for (int x = maker; x < kTailTerms; x += kTailMakers) {
        const int p = first + x / kN, n = x % kN;
        const float gradient = leaving == nullptr ? 0.0F : leaving[p * kN + n];
        const float outer = j < at.real ? mul(value_row(s, at, j)[p], key_row(s, at, j)[n]) : entering[p * kN + n];
        const float term = mul(outer, decay);
        reinterpret_cast<float*>(gradients)[buffer * kTailTerms + x] = gradient;
        reinterpret_cast<float*>(terms)[buffer * kTailTerms + x] = term;
        of_gradients = smaller_exponent(of_gradients, gradient);
        of_terms = smaller_exponent(of_terms, term);
      }
      atomic_min(smallest + buffer * 2, of_gradients);
      atomic_min(smallest + buffer * 2 + 1, of_terms);
    }
    if (thread == 0 && turn == 0) smallest[0] = smallest[1] = smallest[2] = smallest[3] = kNoExponent;
    if (thread == 0 && summed >= 0) {
      const int buffer = summed % 2;
      const FloatRun<4>* a = gradients + buffer * kTailTerms / 4;
      const FloatRun<4>* b = terms + buffer * kTailTerms / 4;
      const bool safe = tail_is_safe(sum, smallest[buffer * 2] + smallest[buffer * 2 + 1]);
      sum = safe ? tail_steps<false>(sum, a, b) : tail_steps<true>(sum, a, b);
      smallest[buffer * 2] = smallest[buffer * 2 + 1] = kNoExponent;
    }
    barrier();
  }
  if (thread == 0) end = add(end, sum);
}

void launch_pair_chains(Context& context, const Mamba3Call& call, const Mamba3Gradients& gradients) {
  const Grid rows{blocks_of(call.new_rows() * call.heads())};
  launch(context, rows, kN, pair_chains<PairGradient::query>, ScanBackward{call, gradients});
  launch(context, rows, kN, pair_chains<PairGradient::key>, ScanBackward{call, gradients});
}

void launch_tail_chains(Context& context, const Mamba3Call& call, const Mamba3Gradients& gradients) {
  const Index units = call.batch * call.heads() * call.chunks();
  launch(context, Grid{blocks_of(units)}, kTailThreads, tail_chains, ScanBackward{call, gradients});
}

}  // namespace

}  // namespace samba::SAMBA_GPU
