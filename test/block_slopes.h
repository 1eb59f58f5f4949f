// Central differences of a block's outputs, summed with given factors, beside its gradients.
#pragma once

#include <catch2/catch.hpp>
#include <string>

#include "block_fixture.h"
#include "samba/blocks/module.h"

namespace samba {

// Some elements of x and of every weight; `step` is added and taken away.
inline void check_block_slopes(Executor& executor, const std::string& kind, ArrayMap weights, Array x, const Array& dy,
                               float step, double epsilon, double margin) {
  const auto loss = [&] {
    BlockModule module(executor, kind, nullptr, views(weights));
    const Array y = module.forward(x);
    double sum = 0.0;
    for (std::size_t i = 0; i < y.floats().size(); ++i) sum += static_cast<double>(y.floats()[i]) * dy.floats()[i];
    return sum;
  };
  const NamedGradients gradients = BlockModule(executor, kind, nullptr, views(weights)).backward(x, dy);
  for (const auto& [name, gradient] : gradients.arrays) {
    INFO(name);
    Array& array = name == "x" ? x : weights.at(name);
    const std::size_t count = array.floats().size();
    for (std::size_t i = 0; i < count; i += count / 3 + 1) {
      float& value = array.floats()[i];
      const float kept = value;
      value = kept + step;
      const double up = loss();
      value = kept - step;
      const double down = loss();
      value = kept;
      const double slope = (up - down) / (2.0 * static_cast<double>(step));
      CHECK(static_cast<double>(gradient.floats()[i]) == Approx(slope).epsilon(epsilon).margin(margin));
    }
  }
}

}  // namespace samba
