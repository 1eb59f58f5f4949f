#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/random.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/random.h"

#include <algorithm>

#include "samba/backends/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

using Tag = hn::ScalableTag<float>;
using Lanes = SimdLanes<Tag>;
using Words = hn::Vec<hn::RebindToUnsigned<Tag>>;

struct PhiloxVectors {
  Words w0, w1, w2, w3;
};

struct Product {
  Words high, low;
};

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE Product multiply_wide(Words a, std::uint32_t factor) {
  const hn::RebindToUnsigned<Tag> du;
  const std::uint64_t product = std::uint64_t{hn::GetLane(a)} * factor;
  return {hn::Set(du, static_cast<std::uint32_t>(product >> 32)), hn::Set(du, static_cast<std::uint32_t>(product))};
}
#else
HWY_INLINE Product multiply_wide(Words a, std::uint32_t factor) {
  const hn::RebindToUnsigned<Tag> du;
  const hn::RepartitionToWide<decltype(du)> wide;
  const auto multiplier = hn::Set(du, factor);
  const auto even = hn::MulEven(a, multiplier);
  const auto odd = hn::MulEven(hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(wide, a))), multiplier);
  const auto high_half = hn::Set(wide, 0xFFFFFFFF00000000ULL);
  const auto high = hn::Or(hn::ShiftRight<32>(even), hn::And(odd, high_half));
  return {hn::BitCast(du, high), hn::Mul(a, multiplier)};
}
#endif

// Lane i holds the block first + i of the stream (spec 10 section 9.1).
HWY_INLINE PhiloxVectors philox_blocks(std::uint64_t seed, std::uint32_t stream, std::uint64_t first) {
  const hn::RebindToUnsigned<Tag> du;
  const auto low = hn::Set(du, static_cast<std::uint32_t>(first));
  auto c0 = hn::Add(low, hn::Iota(du, 0));
  const auto high = hn::Set(du, static_cast<std::uint32_t>(first >> 32));
  auto c1 = hn::IfThenElse(hn::Lt(c0, low), hn::Add(high, hn::Set(du, 1U)), high);
  auto c2 = hn::Set(du, stream);
  auto c3 = hn::Zero(du);
  auto key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const Product p0 = multiply_wide(c0, 0xD2511F53U);
    const Product p2 = multiply_wide(c2, 0xCD9E8D57U);
    c0 = hn::Xor(hn::Xor(p2.high, c1), hn::Set(du, key0));
    c1 = p2.low;
    c2 = hn::Xor(hn::Xor(p0.high, c3), hn::Set(du, key1));
    c3 = p0.low;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return {c0, c1, c2, c3};
}

HWY_INLINE Lanes::F mantissa(const Lanes& l, Words word) {
  return l.to_float(hn::BitCast(l.di, hn::ShiftRight<8>(word)));
}

HWY_INLINE Lanes::F unit(const Lanes& l, Words word) { return l.mul(mantissa(l, word), l.set(0x1p-24F)); }

HWY_INLINE Lanes::F unit_open(const Lanes& l, Words word) {
  return l.mul(l.add(mantissa(l, word), l.set(1.0F)), l.set(0x1p-24F));
}

constexpr Index kChunk = 512;  // values made at a time; a multiple of four times the lanes of every target

// values[i] = unit(word i) for the elements first_block * 4 + i, i < count rounded up to whole vectors of blocks.
HWY_INLINE void fill_units(std::uint64_t seed, std::uint32_t stream, std::uint64_t first_block, Index count,
                           float* HWY_RESTRICT values) {
  const Lanes l{};
  const Index lanes = lanes_of(l.d);
  for (Index i = 0; i < count; i += 4 * lanes) {
    const PhiloxVectors words = philox_blocks(seed, stream, first_block + static_cast<std::uint64_t>(i / 4));
    hn::StoreInterleaved4(unit(l, words.w0), unit(l, words.w1), unit(l, words.w2), unit(l, words.w3), l.d, values + i);
  }
}

// first is a multiple of 4.
void draw_uniform(std::uint64_t seed, std::uint32_t stream, Index first, Index end, float low, float span, float* out) {
  const Lanes l{};
  const auto from = l.flush(l.set(low)), width = l.flush(l.set(span));
  HWY_ALIGN float units[kChunk];
  for (Index i = first; i < end; i += kChunk) {
    const Index count = std::min(kChunk, end - i);
    fill_units(seed, stream, static_cast<std::uint64_t>(i) / 4, count, units);
    over_vectors(l.d, 0, count,
                 [&](auto io, Index j) HWY_ATTR { io.store(l.fma(io.load(units + j), width, from), out + i + j); });
  }
}

HWY_INLINE Lanes::F normal_value(const Lanes& l, Words w0, Words w1) {
  const auto t = l.flush(l.mul(l.set(-2.0F), elementary::log(l, unit_open(l, w0))));
  const auto radius = l.flush(elementary::sqrt(l, t));
  const auto cosine = l.flush(elementary::cos(l, l.flush(l.mul(l.bits(0x40C90FDBU), unit(l, w1)))));
  return l.flush(l.mul(radius, cosine));
}

// first is even.
void draw_normal(std::uint64_t seed, std::uint32_t stream, Index first, Index end, float mean, float deviation,
                 float* out) {
  const Lanes l{};
  const auto center = l.flush(l.set(mean)), width = l.flush(l.set(deviation));
  const Index step = 2 * lanes_of(l.d);
  HWY_ALIGN float values[2 * hn::MaxLanes(l.d)];
  for (Index i = first; i < end; i += step) {
    const PhiloxVectors words = philox_blocks(seed, stream, static_cast<std::uint64_t>(i) / 2);
    hn::StoreInterleaved2(normal_value(l, words.w0, words.w1), normal_value(l, words.w2, words.w3), l.d, values);
    over_vectors(l.d, 0, std::min(step, end - i),
                 [&](auto io, Index j) HWY_ATTR { io.store(l.fma(width, io.load(values + j), center), out + i + j); });
  }
}

// residual may be null. first is a multiple of 4.
void drop(const DropoutKey& key, Index first, Index end, const float* x, const float* residual, float* y) {
  const Lanes l{};
  const auto threshold = l.set(key.p), scale = l.flush(l.set(key.scale));
  HWY_ALIGN float coins[kChunk + 64];
  const auto into_block = static_cast<Index>(key.offset % 4);
  for (Index i = first; i < end; i += kChunk - 4) {
    const Index count = std::min(kChunk - 4, end - i);
    fill_units(key.seed, key.stream, key.offset / 4 + static_cast<std::uint64_t>(i) / 4, into_block + count, coins);
    over_vectors(l.d, 0, count, [&](auto io, Index j) HWY_ATTR {
      const auto keep = l.le(threshold, io.load(coins + into_block + j));
      const auto scaled = l.flush(l.mul(l.flush(io.load(x + i + j)), scale));
      auto value = l.select(keep, scaled, l.set(0.0F));
      if (residual != nullptr) value = l.add(l.flush(io.load(residual + i + j)), value);
      io.store(value, y + i + j);
    });
  }
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {

HWY_EXPORT(draw_uniform);
HWY_EXPORT(draw_normal);
HWY_EXPORT(drop);

constexpr Index kGrain = 4096;  // elements a thread should have to be worth its start; a multiple of 4

}  // namespace

void RandomCpu::uniform(std::uint64_t seed, std::uint32_t stream, Index n, float low, float high, float* out) {
  const auto run = SAMBA_CPU_KERNEL(context_, draw_uniform);
  const float span = high - low;
  context_.parallel(n, kGrain, [&](Index first, Index end, int) { run(seed, stream, first, end, low, span, out); });
}

void RandomCpu::normal(std::uint64_t seed, std::uint32_t stream, Index n, float mean, float deviation, float* out) {
  const auto run = SAMBA_CPU_KERNEL(context_, draw_normal);
  context_.parallel(n, kGrain,
                    [&](Index first, Index end, int) { run(seed, stream, first, end, mean, deviation, out); });
}

void RandomCpu::dropout(const DropoutKey& key, Index n, const float* x, float* y) {
  residual_dropout(key, n, x, nullptr, y);
}

void RandomCpu::residual_dropout(const DropoutKey& key, Index n, const float* x, const float* residual, float* y) {
  const auto run = SAMBA_CPU_KERNEL(context_, drop);
  // Coins are multiples of 2^-24. A subnormal threshold, which DAZ would read as zero, drops the coin 0 alone.
  DropoutKey exact = key;
  if (key.p > 0.0F && key.p < kMinNormal) exact.p = kMinNormal;
  context_.parallel(n, kGrain, [&](Index first, Index end, int) { run(exact, first, end, x, residual, y); });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
