// Philox4x32-10 and the values of a position-keyed stream (spec 10 section 9): every value is a function of
// (seed, stream, element index) alone.
#pragma once

#include <array>
#include <cstdint>

#include "samba/numerics/elementary.h"
#include "samba/numerics/float32.h"

namespace samba {

using PhiloxWords = std::array<std::uint32_t, 4>;

SAMBA_HOST_DEVICE constexpr PhiloxWords philox4x32(PhiloxWords counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t second = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(second),
               static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(first)};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return counter;
}

SAMBA_HOST_DEVICE constexpr PhiloxWords philox_block(std::uint64_t seed, std::uint32_t stream, std::uint64_t block) {
  return philox4x32({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), stream, 0},
                    static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
}

SAMBA_HOST_DEVICE constexpr float unit(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24F; }
SAMBA_HOST_DEVICE constexpr float unit_open(std::uint32_t word) {
  return static_cast<float>((word >> 8) + 1) * 0x1p-24F;
}

// The word of element i for uniform values and dropout coins.
SAMBA_HOST_DEVICE constexpr std::uint32_t stream_word(std::uint64_t seed, std::uint32_t stream, std::uint64_t element) {
  return philox_block(seed, stream, element / 4)[element % 4];
}

SAMBA_HOST_DEVICE constexpr float stream_coin(std::uint64_t seed, std::uint32_t stream, std::uint64_t element) {
  return unit(stream_word(seed, stream, element));
}

// uniform(low, high): `span` is high - low as one float32 subtraction.
SAMBA_HOST_DEVICE inline float stream_uniform(std::uint64_t seed, std::uint32_t stream, std::uint64_t element,
                                              float low, float span) {
  return flush(fma(stream_coin(seed, stream, element), flush(span), flush(low)));
}

SAMBA_HOST_DEVICE inline float stream_normal(std::uint64_t seed, std::uint32_t stream, std::uint64_t element,
                                             float mean, float deviation) {
  const PhiloxWords words = philox_block(seed, stream, element / 2);
  const std::size_t first = element % 2 == 0 ? 0 : 2;
  const float u1 = unit_open(words[first]);
  const float u2 = unit(words[first + 1]);
  const float radius = flush(elementary::sqrt(flush(-2.0F * elementary::log(u1))));
  const float cosine = flush(elementary::cos(flush(from_bits(0x40C90FDBU) * u2)));
  return flush(fma(flush(deviation), flush(radius * cosine), flush(mean)));
}

}  // namespace samba
