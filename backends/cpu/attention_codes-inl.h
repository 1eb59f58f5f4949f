// Scores of attention from codes (numeric_profile fixed15_v1): the panels and tiles of attention-inl.h, of integers
// (fixed15-inl.h). Compiled once per target.
#if defined(SAMBA_CPU_ATTENTION_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_ATTENTION_CODES_INL_H_
#undef SAMBA_CPU_ATTENTION_CODES_INL_H_
#else
#define SAMBA_CPU_ATTENTION_CODES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "samba/backends/cpu/attention-inl.h"
#include "samba/backends/cpu/fixed15-inl.h"
#include "samba/backends/cpu/vectors-inl.h"
#include "samba/kernels/attention.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE::attention {

// Rows of codes by number, with their exponents; those of keys lie as the keys do.
struct CodeRows {
  Rows rows;          // of the floats, whose places the codes share
  const float* base;  // where their row 0 of all lies
  const std::int16_t* codes;
  const std::int32_t* exponents;
  Index head_dim;

  const std::int16_t* operator[](Index row) const { return codes + (rows[row] - base); }
  std::int32_t exponent(Index row) const { return exponents[(rows[row] - base) / head_dim]; }
};

inline CodeRows span_codes(const AttentionShape& shape, const KeyValueView& view, Index batch_row, Index kv_head) {
  return {span_rows(shape, view, view.keys, batch_row, kv_head), view.keys, view.key_codes, view.key_exponents,
          shape.head_dim};
}

// kBlockRows rows of codes in pairs, [depth / 2][kBlockRows], and their exponents. depth is even.
struct CodePanel {
  std::int32_t* pairs;
  alignas(64) std::int32_t exponents[static_cast<std::size_t>(kBlockRows)];

  // rows[r] points to the codes of row r.
  void fill(const std::int16_t* const* rows, Index depth) {
    Index first = 0;  // pairs
#if HWY_TARGET != HWY_SCALAR
    for (; first + 4 <= depth / 2; first += 4) {
      for (Index lane = 0; lane < kBlockRows; lane += kLanes) {
        Vector columns[4];  // moved as they are, whatever numbers their bits would be
        load_transposed(
            Lanes(), [&](Index l) { return reinterpret_cast<const float*>(rows[lane + l] + 2 * first); }, columns);
        for (Index c = 0; c < 4; ++c) {
          hn::StoreU(hn::BitCast(fixed15::Ints(), columns[c]), fixed15::Ints(),
                     pairs + (first + c) * kBlockRows + lane);
        }
      }
    }
#endif
    for (Index r = 0; r < kBlockRows; ++r) {
      fixed15::place_pairs(rows[r] + 2 * first, depth / 2 - first, pairs + first * kBlockRows + r, kBlockRows);
    }
  }
};

constexpr int kCodeTile = kLanes >= 16 ? 4 : 2;

// As product_tile, from codes.
template <int kCount>
HWY_INLINE void code_tile(const CodePanel& panel, const std::int16_t* const* rows, const std::int32_t* exponents,
                          Index depth, Vector scale, float* out, Index out_stride) {
  const fixed15::Ints di;
  fixed15::IntVector low[kCount][2], high[kCount][2];
#pragma GCC unroll 4
  for (int c = 0; c < kCount; ++c) low[c][0] = low[c][1] = high[c][0] = high[c][1] = hn::Zero(di);
  for (Index first = 0; first < depth / 2; first += fixed15::kSurePairs) {
    const Index end = std::min(depth / 2, first + fixed15::kSurePairs);
    fixed15::IntVector acc[kCount][2];
#pragma GCC unroll 4
    for (int c = 0; c < kCount; ++c) acc[c][0] = acc[c][1] = hn::Zero(di);
    for (Index p = first; p < end; ++p) {
      const auto left = hn::LoadU(di, panel.pairs + p * kBlockRows);
      const auto right = hn::LoadU(di, panel.pairs + p * kBlockRows + kLanes);
#pragma GCC unroll 4
      for (int c = 0; c < kCount; ++c) {
        std::int32_t pair;
        std::memcpy(&pair, rows[c] + 2 * p, sizeof pair);
        const auto factor = hn::Set(di, pair);
        acc[c][0] = fixed15::add_pair_products<false>(acc[c][0], left, factor);
        acc[c][1] = fixed15::add_pair_products<false>(acc[c][1], right, factor);
      }
    }
#pragma GCC unroll 4
    for (int c = 0; c < kCount; ++c) {
      for (int v = 0; v < 2; ++v) {
        low[c][v] = hn::Add(low[c][v], acc[c][v]);
        high[c][v] = hn::Add(high[c][v], hn::ShiftRight<16>(acc[c][v]));
      }
    }
  }
  for (int c = 0; c < kCount; ++c) {
    for (int v = 0; v < 2; ++v) {
      const auto exponent = hn::Add(hn::Set(di, exponents[c]), hn::Load(di, panel.exponents + v * kLanes));
      const Vector sum = fixed15::rounded_sum(low[c][v], high[c][v]);
      const Vector dot = flush_operand(Lanes(), hn::Mul(sum, fixed15::power(exponent)));
      keep(flush_operand(Lanes(), hn::Mul(dot, scale)), out + c * out_stride + v * kLanes);
    }
  }
}

template <int kCount, class Source>
HWY_INLINE Index code_tiles(const CodePanel& panel, const Source& rows, Index depth, Vector scale, Index first,
                            Index end, float* out, Index out_stride) {
  for (; first + kCount <= end; first += kCount) {
    const std::int16_t* pointers[kCount];
    std::int32_t exponents[kCount];
    for (int c = 0; c < kCount; ++c) {
      pointers[c] = rows[first + c];
      exponents[c] = rows.exponent(first + c);
    }
    code_tile<kCount>(panel, pointers, exponents, depth, scale, out + first * out_stride, out_stride);
  }
  return first;
}

// As product_panel, from codes: rows[row] points to a row of codes, rows.exponent(row) is its exponent.
template <class Source>
inline void code_panel(const CodePanel& panel, const Source& rows, Index depth, float scale, Index first, Index end,
                       float* out, Index out_stride = kBlockRows) {
  const Vector factor = hn::Set(Lanes(), scale);
  first = code_tiles<kCodeTile>(panel, rows, depth, factor, first, end, out, out_stride);
  code_tiles<1>(panel, rows, depth, factor, first, end, out, out_stride);
}

}  // namespace samba::cpu::HWY_NAMESPACE::attention
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
