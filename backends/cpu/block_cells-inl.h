// Groups of 32 columns of rows of quantised blocks (samba/numerics/block_weight.h), expanded in registers: a vector
// holds one column of as many rows as it has lanes. Once per target.
#if defined(SAMBA_CPU_BLOCK_CELLS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_BLOCK_CELLS_INL_H_
#undef SAMBA_CPU_BLOCK_CELLS_INL_H_
#else
#define SAMBA_CPU_BLOCK_CELLS_INL_H_
#endif

#include "samba/backends/cpu/lanes-inl.h"
#include "samba/numerics/block_weight.h"
#include "samba/numerics/packed_weight.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

inline constexpr int kGroup = 32;  // columns expanded together
#if HWY_TARGET <= HWY_AVX3
inline constexpr int kBlockVectors = 3;  // the most vectors of rows that are expanded side by side
#else
inline constexpr int kBlockVectors = 2;
#endif

using BlockFloats = hn::ScalableTag<float>;
using BlockWords = hn::RebindToUnsigned<BlockFloats>;
using BlockInts = hn::RebindToSigned<BlockFloats>;
using FloatVec = hn::Vec<BlockFloats>;
using WordVec = hn::Vec<BlockWords>;
inline constexpr int kBlockLanes = static_cast<int>(hn::MaxLanes(BlockFloats()));

// words[w]: of every lane the word w of the 16 bytes at rows[lane] + offset.
template <class D = BlockWords>
HWY_INLINE void load_words(const std::byte* const* rows, std::size_t offset, hn::Vec<D>* words) {
  constexpr std::size_t kLanes = hn::MaxLanes(D());
  const D du;
  const hn::Full128<std::uint32_t> quarter;
  const hn::Full128<std::uint8_t> bytes;
  const auto at = [&](int lane) HWY_ATTR {
    return hn::BitCast(quarter, hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(rows[lane]) + offset));
  };
  hn::Vec<D> r[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    if constexpr (kLanes == 4) {
      r[i] = at(i);
    } else if constexpr (kLanes == 8) {
      r[i] = hn::Combine(du, at(i + 4), at(i));
    } else {
      const hn::Half<D> half;
      r[i] = hn::Combine(du, hn::Combine(half, at(i + 12), at(i + 8)), hn::Combine(half, at(i + 4), at(i)));
    }
  }
  // 4 x 4 words in every 128 bits: row 4 b + i of the vector r[i]'s part b becomes lane 4 b + i.
  const hn::Repartition<std::uint64_t, D> wide;
  const auto low01 = hn::BitCast(wide, hn::InterleaveLower(du, r[0], r[1]));
  const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(du, r[0], r[1]));
  const auto low23 = hn::BitCast(wide, hn::InterleaveLower(du, r[2], r[3]));
  const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(du, r[2], r[3]));
  words[0] = hn::BitCast(du, hn::InterleaveLower(wide, low01, low23));
  words[1] = hn::BitCast(du, hn::InterleaveUpper(wide, low01, low23));
  words[2] = hn::BitCast(du, hn::InterleaveLower(wide, high01, high23));
  words[3] = hn::BitCast(du, hn::InterleaveUpper(wide, high01, high23));
}

// Of every lane the `Word` at rows[lane] + offset.
template <class Word>
HWY_INLINE WordVec load_each(const std::byte* const* rows, std::size_t offset) {
  HWY_ALIGN std::uint32_t words[kBlockLanes];
  for (int lane = 0; lane < kBlockLanes; ++lane) {
    Word word;
    std::memcpy(&word, rows[lane] + offset, sizeof word);
    words[lane] = word;
  }
  return hn::Load(BlockWords(), words);
}

// half_value of the low 16 bits of every lane; the others are 0.
HWY_INLINE FloatVec halves(WordVec half) {
  const BlockFloats d;
  const BlockWords du;
  const BlockInts di;
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000U)));
  const auto magnitude = hn::And(half, hn::Set(du, 0x7FFFU));
  const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), hn::Set(du, 0x38000000U));
  const auto infinite = hn::Or(hn::ShiftLeft<13>(magnitude), hn::Set(du, 0x7F800000U));
  const auto small = hn::BitCast(du, hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)), hn::Set(d, 0x1p-24F)));
  const auto is_small = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 0x0400));
  const auto is_infinite = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7BFF));
  const auto finite = hn::IfThenElse(hn::RebindMask(du, is_small), small, normal);
  return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(hn::RebindMask(du, is_infinite), infinite, finite)));
}

HWY_INLINE FloatVec low_half(WordVec word) { return halves(hn::And(word, hn::Set(BlockWords(), 0xFFFFU))); }
HWY_INLINE FloatVec high_half(WordVec word) { return halves(hn::ShiftRight<16>(word)); }
HWY_INLINE FloatVec small_number(WordVec code) { return hn::ConvertTo(BlockFloats(), hn::BitCast(BlockInts(), code)); }
HWY_INLINE WordVec masked(WordVec word, std::uint32_t mask) { return hn::And(word, hn::Set(BlockWords(), mask)); }

// Of every lane byte `which` of the word, 0 .. 3.
HWY_INLINE WordVec byte_of(WordVec word, int which) { return masked(hn::ShiftRightSame(word, 8 * which), 0xFFU); }
// The same as a signed number.
HWY_INLINE FloatVec signed_byte_of(WordVec word, int which) {
  const auto up = hn::BitCast(BlockInts(), hn::ShiftLeftSame(word, 24 - 8 * which));
  return hn::ConvertTo(BlockFloats(), hn::ShiftRight<24>(up));
}

// Every format: load(rows, group) reads what group number `group` of a row needs for one vector of rows; begin(half)
// turns to its columns [16 half, 16 half + 16); next(i) gives column i of the half, i ascending from 0.
// `group` counts from the start of the row.

// Codes in 16 bytes a half, a byte a column, of which `bits` of the bytes' low ones are taken.
struct SmallCodes {
  WordVec words[4];
  WordVec word;
  HWY_INLINE void turn(int i) {
    if (i % 4 == 0) word = words[i / 4];
  }
  HWY_INLINE WordVec take(std::uint32_t mask) {
    const WordVec code = masked(word, mask);
    word = hn::ShiftRight<8>(word);
    return code;
  }
};

// The 16 bytes that hold the columns of both halves of a group in their low and high four bits.
struct Nibbles {
  WordVec stored[4];
  SmallCodes codes;
  HWY_INLINE void load(const std::byte* const* rows, std::size_t offset) { load_words(rows, offset, stored); }
  HWY_INLINE void begin(int half) {
    for (int w = 0; w < 4; ++w) codes.words[w] = half == 0 ? stored[w] : hn::ShiftRight<4>(stored[w]);
  }
  HWY_INLINE WordVec next(int i) {
    codes.turn(i);
    return codes.take(15);
  }
};

// Nibbles and a word with the fifth bits, in the order of the columns.
struct FiveBits {
  Nibbles nibbles;
  WordVec high;
  HWY_INLINE void load(const std::byte* const* rows, std::size_t at) {
    high = load_each<std::uint32_t>(rows, at);
    nibbles.load(rows, at + 4);
  }
  HWY_INLINE void begin(int half) { nibbles.begin(half); }
  HWY_INLINE WordVec next(int i) {
    const WordVec code = hn::Or(nibbles.next(i), masked(hn::ShiftLeft<4>(high), 16));
    high = hn::ShiftRight<1>(high);
    return code;
  }
};

// Q4_0 and Q5_0: value = (code - kZero) * d; a half d, then the codes.
template <class Codes, std::size_t kBlockBytes, std::uint32_t kZero>
struct ScaledCells {
  Codes codes;
  FloatVec d;
  HWY_INLINE void load(const std::byte* const* rows, Index group) {
    const std::size_t block = static_cast<std::size_t>(group) * kBlockBytes;
    d = halves(load_each<std::uint16_t>(rows, block));
    codes.load(rows, block + 2);
  }
  HWY_INLINE void begin(int half) { codes.begin(half); }
  HWY_INLINE FloatVec next(int i) {
    return hn::Mul(small_number(hn::Sub(codes.next(i), hn::Set(BlockWords(), kZero))), d);
  }
};

// Q4_1 and Q5_1: value = code * d + m; halves d and m, then the codes.
template <class Codes, std::size_t kBlockBytes>
struct ShiftedCells {
  Codes codes;
  FloatVec d, m;
  HWY_INLINE void load(const std::byte* const* rows, Index group) {
    const std::size_t block = static_cast<std::size_t>(group) * kBlockBytes;
    const WordVec scales = load_each<std::uint32_t>(rows, block);
    d = low_half(scales);
    m = high_half(scales);
    codes.load(rows, block + 4);
  }
  HWY_INLINE void begin(int half) { codes.begin(half); }
  HWY_INLINE FloatVec next(int i) { return hn::MulAdd(small_number(codes.next(i)), d, m); }
};

using Q4_0Cells = ScaledCells<Nibbles, 18, 8>;
using Q4_1Cells = ShiftedCells<Nibbles, 20>;
using Q5_0Cells = ScaledCells<FiveBits, 22, 16>;
using Q5_1Cells = ShiftedCells<FiveBits, 24>;

struct Q8_0Cells {
  const std::byte* const* rows;
  std::size_t block;
  SmallCodes codes;
  FloatVec d;
  HWY_INLINE void load(const std::byte* const* given, Index group) {
    rows = given;
    block = static_cast<std::size_t>(group) * 34;
    d = halves(load_each<std::uint16_t>(rows, block));
  }
  HWY_INLINE void begin(int half) { load_words(rows, block + 2 + static_cast<std::size_t>(half) * 16, codes.words); }
  HWY_INLINE FloatVec next(int i) {
    codes.turn(i);
    const auto code = hn::ShiftRight<24>(hn::BitCast(BlockInts(), hn::ShiftLeft<24>(codes.word)));
    codes.word = hn::ShiftRight<8>(codes.word);
    return hn::Mul(hn::ConvertTo(BlockFloats(), code), d);
  }
};

// Q4_K and Q5_K: groups g and g + 1 of a block of 8 share 32 bytes, low and high four bits.
template <bool kFive>
struct KCells {
  static constexpr std::size_t kBytes = kFive ? 176 : 144;
  const std::byte* const* rows;
  std::size_t block;
  int g;
  SmallCodes codes, fifth;
  FloatVec scale, negative_minimum;
  HWY_INLINE void load(const std::byte* const* given, Index group) {
    rows = given;
    block = static_cast<std::size_t>(group / 8) * kBytes;
    g = static_cast<int>(group % 8);
    WordVec head[4];
    load_words(rows, block, head);
    WordVec s, m;
    if (g < 4) {
      s = masked(byte_of(head[1], g), 63);
      m = masked(byte_of(head[2], g), 63);
    } else {
      const WordVec low = byte_of(head[3], g - 4);
      s = hn::Or(masked(low, 15), hn::ShiftLeft<4>(hn::ShiftRight<6>(byte_of(head[1], g - 4))));
      m = hn::Or(hn::ShiftRight<4>(low), hn::ShiftLeft<4>(hn::ShiftRight<6>(byte_of(head[2], g - 4))));
    }
    scale = hn::Mul(low_half(head[0]), small_number(s));
    negative_minimum = hn::Neg(hn::Mul(high_half(head[0]), small_number(m)));
  }
  HWY_INLINE void begin(int half) {
    const std::size_t at = static_cast<std::size_t>(half) * 16;
    load_words(rows, block + (kFive ? 48 : 16) + static_cast<std::size_t>(g / 2) * 32 + at, codes.words);
    if (g % 2 != 0) {
      for (WordVec& word : codes.words) word = hn::ShiftRight<4>(word);
    }
    if constexpr (kFive) {
      load_words(rows, block + 16 + at, fifth.words);
      for (WordVec& word : fifth.words) word = hn::ShiftRightSame(word, g);
    }
  }
  HWY_INLINE FloatVec next(int i) {
    codes.turn(i);
    WordVec code = codes.take(15);
    if constexpr (kFive) {
      fifth.turn(i);
      code = hn::Or(code, hn::ShiftLeft<4>(fifth.take(1)));
    }
    return hn::MulAdd(small_number(code), scale, negative_minimum);
  }
};

struct Q6KCells {
  const std::byte* const* rows;
  std::size_t block;
  int g;
  SmallCodes low, high;
  WordVec scales[4];
  FloatVec d, scale;
  HWY_INLINE void load(const std::byte* const* given, Index group) {
    rows = given;
    block = static_cast<std::size_t>(group / 8) * 210;
    g = static_cast<int>(group % 8);
    load_words(rows, block + 192, scales);
    d = halves(load_each<std::uint16_t>(rows, block + 208));
  }
  HWY_INLINE void begin(int half) {
    const std::size_t at = static_cast<std::size_t>(half) * 16;
    const int which = 2 * g + half;
    scale = hn::Mul(d, signed_byte_of(scales[which / 4], which % 4));
    load_words(rows, block + static_cast<std::size_t>(g / 4 * 64 + g % 2 * 32) + at, low.words);
    load_words(rows, block + 128 + static_cast<std::size_t>(g / 4 * 32) + at, high.words);
    if (g % 4 >= 2) {
      for (WordVec& word : low.words) word = hn::ShiftRight<4>(word);
    }
    for (WordVec& word : high.words) word = hn::ShiftRightSame(word, g % 4 * 2);
  }
  HWY_INLINE FloatVec next(int i) {
    low.turn(i);
    high.turn(i);
    const WordVec code = hn::Or(low.take(15), hn::ShiftLeft<4>(high.take(3)));
    return hn::Mul(small_number(hn::Sub(code, hn::Set(BlockWords(), 32))), scale);
  }
};

// float16 and bfloat16: two columns a word.
template <bool kHalf>
struct WideCells {
  const std::byte* const* rows;
  std::size_t block;
  WordVec words[8];
  HWY_INLINE void load(const std::byte* const* given, Index group) {
    rows = given;
    block = static_cast<std::size_t>(group) * 64;
  }
  HWY_INLINE void begin(int half) {
    const std::size_t at = block + static_cast<std::size_t>(half) * 32;
    load_words(rows, at, words);
    load_words(rows, at + 16, words + 4);
  }
  HWY_INLINE FloatVec next(int i) {
    const WordVec word = words[i / 2];
    if constexpr (kHalf) return i % 2 == 0 ? low_half(word) : high_half(word);
    return hn::BitCast(BlockFloats(), i % 2 == 0 ? hn::ShiftLeft<16>(word) : masked(word, 0xFFFF0000U));
  }
};

// Calls sink(p, v, values) for the columns p = 0 .. 31 of the group and the vectors v of rows.
template <class Cells, int kVectors, class Sink>
HWY_INLINE void expand_group(const std::byte* const* rows, Index group, const Sink& sink) {
  Cells cells[kVectors];
#pragma GCC unroll 3
  for (int v = 0; v < kVectors; ++v) cells[v].load(rows + v * kBlockLanes, group);
  for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) cells[v].begin(half);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sink(half * 16 + i, v, cells[v].next(i));
    }
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
