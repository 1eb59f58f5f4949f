// How far float32 results lie from values computed in more precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

namespace samba {

// One rounding of float32, relative: half of the distance from 1 to its neighbour.
inline constexpr double kRounding = 0x1p-24;

template <class Value>
double largest(std::span<const Value> values) {
  double most = 0.0;
  for (const Value value : values) most = std::max(most, std::abs(static_cast<double>(value)));
  return most;
}

// max |got - want| / (2^-24 sqrt(chain) max |want|): the distance in typical sizes of the error of a serial sum of
// `chain` terms as large as the largest wanted value. Infinite when the sizes differ or a value is not finite.
template <class Value>
double distance(std::span<const float> got, std::span<const Value> want, std::size_t chain) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double most = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    if (!(difference <= std::numeric_limits<double>::max())) return std::numeric_limits<double>::infinity();
    most = std::max(most, difference);
  }
  if (most == 0.0) return 0.0;
  return most / (kRounding * std::sqrt(static_cast<double>(chain)) * largest(want));
}

}  // namespace samba
