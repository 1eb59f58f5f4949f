// Blocks with drawn weights for the tests of lib/blocks, and the executors they run on.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bits.h"
#include "samba/backends/registry.h"
#include "samba/blocks/block.h"
#include "samba/core/array.h"
#include "samba/core/error.h"
#include "samba/numerics/philox.h"

namespace samba {

// reference, and cpu with two threads on each instruction set of this machine
inline std::vector<std::unique_ptr<Executor>> every_executor() {
  std::vector<std::unique_ptr<Executor>> all;
  all.push_back(make_executor("reference"));
  for (const std::string& set : instruction_sets()) {
    all.push_back(make_executor("cpu", {.threads = 2, .instruction_set = set}));
  }
  return all;
}

inline Array drawn(std::uint32_t stream, Shape shape, float mean = 0.0F, float deviation = 1.0F) {
  Array array(DType::float32, std::move(shape));
  for (std::size_t i = 0; i < array.floats().size(); ++i) {
    array.floats()[i] = stream_normal(77, stream, i, mean, deviation);
  }
  return array;
}

// Matrices around 0, everything else around 1, as in a model.
inline ArrayMap drawn_weights(const std::vector<WeightSpec>& specs) {
  ArrayMap weights;
  for (const WeightSpec& spec : specs) {
    const bool around_zero = spec.shape.size() == 2 || spec.name.ends_with("proj.bias") || spec.name == "dt_bias";
    const auto stream = static_cast<std::uint32_t>(weights.size());
    weights.emplace(spec.name, drawn(stream, spec.shape, around_zero ? 0.0F : 1.0F, around_zero ? 0.4F : 0.2F));
  }
  return weights;
}

inline ConstArrayMap views(const ArrayMap& arrays) { return {arrays.begin(), arrays.end()}; }

// The positions [from, to) of x (batch, length, width).
inline Array positions(const Array& x, Index from, Index to) {
  const Index length = x.shape()[1], width = x.shape()[2];
  Array part(DType::float32, {x.shape()[0], to - from, width});
  for (Index b = 0; b < x.shape()[0]; ++b) {
    std::copy_n(x.floats().data() + (b * length + from) * width, (to - from) * width,
                part.floats().data() + b * (to - from) * width);
  }
  return part;
}

inline Array batch_row(const Array& x, Index row) {
  const Index floats = x.shape()[1] * x.shape()[2];
  return Array::from_floats({1, x.shape()[1], x.shape()[2]}, x.floats().subspan(static_cast<std::size_t>(row * floats),
                                                                                static_cast<std::size_t>(floats)));
}

// Not the same bits; says nothing, unlike bits_equal.
inline bool differ(std::span<const float> a, std::span<const float> b) {
  return !std::equal(a.begin(), a.end(), b.begin(), b.end(), same_bits);
}

// The message of the Error that `call` throws, after its kind: "value: ..."; empty when it throws none.
template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    const char* kind = error.kind() == ErrorKind::value         ? "value: "
                       : error.kind() == ErrorKind::type        ? "type: "
                       : error.kind() == ErrorKind::unsupported ? "unsupported: "
                                                                : "other: ";
    return kind + std::string(error.what());
  }
  return {};
}

}  // namespace samba
