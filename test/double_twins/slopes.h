// Gradients held against central differences of a function in double precision.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <span>
#include <string>

#include "closeness.h"
#include "double_twins/twin.h"
#include "samba/numerics/philox.h"

namespace samba::twin {

// The slope of f along `direction` at `values`, which f reads. Five points: the error is of order (step / s)^4, s the
// size of the values, and 1e-12 from the rounding of f, far below one float32 rounding.
template <class Function>
double slope(const Function& f, Doubles& values, const Doubles& direction) {
  constexpr double kStep = 0x1p-13;
  const Doubles kept = values;
  const auto f_at = [&](double steps) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = kept[i] + steps * kStep * direction[i];
    return f();
  };
  const double near = f_at(1.0) - f_at(-1.0), far = f_at(2.0) - f_at(-2.0);
  values = kept;
  return (8.0 * near - far) / (12.0 * kStep);
}

struct SlopeTests {
  std::size_t directions = 2;   // random ones of length 1 through all coordinates
  std::size_t coordinates = 4;  // single ones, the largest of the gradient among them
  double least = 0.0;           // taken as the largest value of a gradient that is smaller: one number can cancel
};

// `gradient` is that of f by `values`, to within `bound` times 2^-24 sqrt(chain) times its largest value.
template <class Function>
void check_slopes(const Function& f, Doubles& values, std::span<const float> gradient, std::size_t chain, double bound,
                  const std::string& name, const SlopeTests& tests = {}) {
  REQUIRE(gradient.size() == values.size());
  const double most = std::max(largest(gradient), tests.least);
  // 0 for queries and keys under a window of one position, which do not reach f.
  const double unit = kRounding * std::sqrt(static_cast<double>(chain)) * (most > 0.0 ? most : 1.0);
  const auto check = [&](const Doubles& direction, const std::string& what) {
    double along = 0.0;
    for (std::size_t i = 0; i < values.size(); ++i) along += direction[i] * static_cast<double>(gradient[i]);
    const double found = std::abs(along - slope(f, values, direction)) / unit;
    INFO(name << ' ' << what << ": distance " << found << ", bound " << bound);
    CHECK(found <= bound);
  };
  for (std::size_t d = 0; d < tests.directions; ++d) {
    Doubles direction(values.size());
    const double length = 1.0 / std::sqrt(static_cast<double>(values.size()));
    for (std::size_t i = 0; i < direction.size(); ++i) {
      direction[i] = stream_coin(78, static_cast<std::uint32_t>(d), i) < 0.5F ? length : -length;
    }
    check(direction, "along direction " + std::to_string(d));
  }
  for (std::size_t c = 0; c < std::min(tests.coordinates, values.size()); ++c) {
    std::size_t place = c * (values.size() - 1) / tests.coordinates;
    if (c == 0) {
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        if (std::abs(gradient[i]) > std::abs(gradient[place])) place = i;
      }
    }
    Doubles direction(values.size());
    direction[place] = 1.0;
    check(direction, "at " + std::to_string(place));
  }
}

}  // namespace samba::twin
