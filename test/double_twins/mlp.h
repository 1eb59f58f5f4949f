// The small network in double precision: Linear, ReLU, Linear, mean cross-entropy over the classes, AdamW.
#pragma once

#include "double_twins/twin.h"

namespace samba::twin {

// weights: weight1 (hidden, features), bias1, weight2 (classes, hidden), bias2. x (rows, features).
inline Doubles mlp_logits(const Tensors& weights, const Doubles& x) {
  const auto hidden = static_cast<Index>(weights.at("bias1").size());
  Doubles inner =
      linear(x, static_cast<Index>(weights.at("weight1").size()) / hidden, weights.at("weight1"), &weights.at("bias1"));
  for (double& value : inner) value = std::max(value, 0.0);
  return linear(inner, hidden, weights.at("weight2"), &weights.at("bias2"));
}

// One value and its moments under AdamW (Loshchilov and Hutter 2019).
struct AdamW {
  double lr, beta1, beta2, eps, weight_decay;

  void update(double& value, double gradient, double& m, double& v, int step) const {
    m = beta1 * m + (1.0 - beta1) * gradient;
    v = beta2 * v + (1.0 - beta2) * gradient * gradient;
    const double mean = m / (1.0 - std::pow(beta1, step)), square = v / (1.0 - std::pow(beta2, step));
    value -= lr * (weight_decay * value + mean / (std::sqrt(square) + eps));
  }
};

}  // namespace samba::twin
