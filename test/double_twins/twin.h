// A block in double precision, written from the model's mathematics with plain loops: what the float32 blocks must come
// close to (forward) and whose slopes their gradients must be. Nothing here rounds to float32, cuts a sequence into
// chunks or orders a sum on purpose.
//
// Arrays are row-major: x and y (batch, length, width), weights by their public names in their public shapes.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "samba/core/array.h"

namespace samba::twin {

using Doubles = std::vector<double>;
using Tensors = std::map<std::string, Doubles>;
using Counters = std::map<std::string, Index>;

class Twin {
 public:
  virtual ~Twin() = default;

  // The state of a sequence in mathematical terms; its tensors and their layouts are each twin's own.
  virtual Tensors empty_state(Index batch) const = 0;
  // The same state from the pieces and counters that a ModuleState shows.
  virtual Tensors state_of(const Tensors& weights, const Tensors& pieces, const Counters& counters,
                           Index batch) const = 0;
  // Continues `state` by `length` tokens in each row.
  virtual Doubles forward(const Tensors& weights, const Doubles& x, Index batch, Index length,
                          Tensors& state) const = 0;

  Doubles forward(const Tensors& weights, const Doubles& x, Index batch, Index length) const {
    Tensors state = empty_state(batch);
    return forward(weights, x, batch, length, state);
  }
};

inline Doubles to_doubles(std::span<const float> values) { return {values.begin(), values.end()}; }

inline Tensors to_doubles(const ArrayMap& arrays) {
  Tensors tensors;
  for (const auto& [name, array] : arrays) tensors.emplace(name, to_doubles(array.floats()));
  return tensors;
}

inline std::size_t at(Index index) { return static_cast<std::size_t>(index); }

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
inline double silu(double x) { return x * sigmoid(x); }
inline double softplus(double x) { return x > 30.0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

// x (rows, inputs) W^T, W (outputs, inputs), and a bias (outputs) when it is there.
inline Doubles linear(const Doubles& x, Index inputs, const Doubles& weight, const Doubles* bias = nullptr) {
  const Index outputs = static_cast<Index>(weight.size()) / inputs;
  const Index rows = static_cast<Index>(x.size()) / inputs;
  Doubles y(at(rows * outputs));
  for (Index row = 0; row < rows; ++row) {
    for (Index output = 0; output < outputs; ++output) {
      double sum = bias == nullptr ? 0.0 : (*bias)[at(output)];
      for (Index i = 0; i < inputs; ++i) sum += x[at(row * inputs + i)] * weight[at(output * inputs + i)];
      y[at(row * outputs + output)] = sum;
    }
  }
  return y;
}

// w * x / sqrt(mean(x^2) + eps) for each row as wide as the weight; `offset` is added to w.
inline Doubles rms_norm(const Doubles& x, const Doubles& weight, double eps, double offset = 0.0) {
  const std::size_t width = weight.size();
  Doubles y(x.size());
  for (std::size_t row = 0; row < x.size(); row += width) {
    double squares = 0.0;
    for (std::size_t i = 0; i < width; ++i) squares += x[row + i] * x[row + i];
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(width) + eps);
    for (std::size_t i = 0; i < width; ++i) y[row + i] = (offset + weight[i]) * x[row + i] * scale;
  }
  return y;
}

// w * (x - mean) / sqrt(variance + eps) for each row, and a bias when it is there.
inline Doubles layer_norm(const Doubles& x, const Doubles& weight, const Doubles* bias, double eps) {
  const std::size_t width = weight.size();
  const auto count = static_cast<double>(width);
  Doubles y(x.size());
  for (std::size_t row = 0; row < x.size(); row += width) {
    double mean = 0.0, variance = 0.0;
    for (std::size_t i = 0; i < width; ++i) mean += x[row + i] / count;
    for (std::size_t i = 0; i < width; ++i) variance += (x[row + i] - mean) * (x[row + i] - mean) / count;
    for (std::size_t i = 0; i < width; ++i) {
      y[row + i] = weight[i] * (x[row + i] - mean) / std::sqrt(variance + eps) + (bias == nullptr ? 0.0 : (*bias)[i]);
    }
  }
  return y;
}

// The tensor of this name; null when there is none.
inline const Doubles* optional(const Tensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : &found->second;
}

inline void add_to(Doubles& sum, const Doubles& term) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += term[i];
}

// The columns [from, from + count) of x (rows, width).
inline Doubles columns(const Doubles& x, Index width, Index from, Index count) {
  Doubles part;
  for (std::size_t row = 0; row < x.size(); row += at(width)) {
    part.insert(part.end(), x.begin() + static_cast<std::ptrdiff_t>(row + at(from)),
                x.begin() + static_cast<std::ptrdiff_t>(row + at(from + count)));
  }
  return part;
}

// The mean of -log softmax(logits)[target] over the targets that are not negative. logits (targets, classes)
inline double mean_cross_entropy(const Doubles& logits, const std::vector<std::int32_t>& targets) {
  const std::size_t classes = logits.size() / targets.size();
  double sum = 0.0, counted = 0.0;
  for (std::size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] < 0) continue;
    double total = 0.0;
    for (std::size_t c = 0; c < classes; ++c) total += std::exp(logits[row * classes + c]);
    sum += std::log(total) - logits[row * classes + at(targets[row])];
    counted += 1.0;
  }
  return sum / counted;
}

// Causal depthwise convolution of four taps (oldest first) with bias, then SiLU. x, y (batch, length, channels); past
// (batch, channels, 3): the inputs before the call, oldest first, and afterwards those before the next one.
inline Doubles short_convolution(const Doubles& x, const Doubles& weight, const Doubles& bias, Index batch,
                                 Index length, Doubles& past) {
  const auto channels = static_cast<Index>(bias.size());
  Doubles y(x.size());
  for (Index b = 0; b < batch; ++b) {
    for (Index c = 0; c < channels; ++c) {
      Doubles inputs(past.begin() + (b * channels + c) * 3, past.begin() + (b * channels + c) * 3 + 3);
      for (Index t = 0; t < length; ++t) {
        inputs.push_back(x[at((b * length + t) * channels + c)]);
        double sum = bias[at(c)];
        for (Index tap = 0; tap < 4; ++tap) sum += weight[at(c * 4 + tap)] * inputs[at(t + tap)];
        y[at((b * length + t) * channels + c)] = silu(sum);
      }
      for (Index i = 0; i < 3; ++i) past[at((b * channels + c) * 3 + i)] = inputs[at(length + i)];
    }
  }
  return y;
}

// The part of a conv_window piece (batch, channels, 4) that the next token reads: its last three slots.
inline Doubles past_of_window(const Doubles& window) {
  Doubles past;
  for (std::size_t i = 0; i < window.size(); ++i) {
    if (i % 4 != 0) past.push_back(window[i]);
  }
  return past;
}

}  // namespace samba::twin
