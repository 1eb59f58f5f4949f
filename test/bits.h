// The one comparator of the tests: equal bits, where any NaN equals any NaN and -0.0 is not +0.0.
//
//   CHECK(bits_equal(got, want));   // prints the first difference: index, values, bit patterns, distance in ulp
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

#include "samba/numerics/float32.h"

namespace samba {

inline bool same_bits(float a, float b) { return to_bits(a) == to_bits(b) || (is_nan(a) && is_nan(b)); }

// The number of float32 values between two: neighbours are 1 apart, -0.0 and +0.0 also.
inline std::int64_t ulp_distance(float a, float b) {
  return std::abs(static_cast<std::int64_t>(order_key(a)) - static_cast<std::int64_t>(order_key(b)));
}

inline bool bits_equal(std::span<const float> got, std::span<const float> want) {
  if (got.size() != want.size()) {
    std::printf("  sizes differ: got %zu values, want %zu\n", got.size(), want.size());
    return false;
  }
  std::size_t different = 0, first = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (same_bits(got[i], want[i])) continue;
    if (different++ == 0) first = i;
  }
  if (different == 0) return true;
  std::printf("  first difference at %zu of %zu: got %.9g (0x%08x), want %.9g (0x%08x), %lld ulp; %zu values differ\n",
              first, got.size(), static_cast<double>(got[first]), to_bits(got[first]), static_cast<double>(want[first]),
              to_bits(want[first]), static_cast<long long>(ulp_distance(got[first], want[first])), different);
  return false;
}

}  // namespace samba
