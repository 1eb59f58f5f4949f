#include "samba/blocks/rotary_table.h"

#include <algorithm>
#include <string>
#include <utility>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/float32.h"

namespace samba {

namespace {

constexpr Index kFirstRows = 64;
constexpr float kTwoPi = from_bits(0x40C90FDBU);

// Spec 20 section 2 step 3.
float scale_llama3(float inverse, const RopeScaling& scaling) {
  const auto old = static_cast<float>(scaling.original_max_position_embeddings);
  const float factor = flush(scaling.factor);
  const float low = flush(scaling.low_freq_factor);
  const float high = flush(scaling.high_freq_factor);
  const float wave_length = div(kTwoPi, inverse);
  if (wave_length > div(old, low)) return div(inverse, factor);
  if (wave_length < div(old, high)) return inverse;
  const float smooth = div(sub(div(old, wave_length), low), sub(high, low));
  const float scaled = div(mul(sub(1.0F, smooth), inverse), factor);
  return add(scaled, mul(smooth, inverse));
}

std::vector<float> make_inverse_frequencies(Index rotary_dim, float theta, const RopeScaling& scaling) {
  const FloatScope float_scope;
  if (rotary_dim < 2 || rotary_dim % 2 != 0) {
    refuse_value("rotary_dim must be even and positive, got " + std::to_string(rotary_dim));
  }
  std::vector<float> inverses(static_cast<std::size_t>(rotary_dim / 2));
  for (std::size_t i = 0; i < inverses.size(); ++i) {
    const float exponent = div(static_cast<float>(2 * i), static_cast<float>(rotary_dim));
    float inverse = div(1.0F, elementary::pow(theta, exponent));
    if (scaling.kind == RopeScaling::Kind::linear) inverse = div(inverse, scaling.factor);
    if (scaling.kind == RopeScaling::Kind::llama3) inverse = scale_llama3(inverse, scaling);
    inverses[i] = inverse;
  }
  return inverses;
}

float angle_at(Index position, float inverse_frequency) { return mul(static_cast<float>(position), inverse_frequency); }

}  // namespace

Index rotary_position_limit(Index rotary_dim, float theta, const RopeScaling& scaling, Index most) {
  const FloatScope float_scope;
  const std::vector<float> inverses = make_inverse_frequencies(rotary_dim, theta, scaling);
  Index first = 0, end = most;  // angles grow with the position: the first one outside lies in [first, end]
  while (first < end) {
    const Index middle = first + (end - first) / 2;
    const bool inside = std::all_of(inverses.begin(), inverses.end(), [&](float inverse) {
      return angle_at(middle, inverse) < RotaryTable::kAngleLimit;
    });
    if (inside) {
      first = middle + 1;
    } else {
      end = middle;
    }
  }
  return first;
}

RotaryTable::RotaryTable(Executor& executor, Index rotary_dim, float theta, const RopeScaling& scaling)
    : memory_(executor.memory()), inverse_frequencies_(make_inverse_frequencies(rotary_dim, theta, scaling)) {}

float RotaryTable::angle(Index position, Index column) const {
  return angle_at(position, inverse_frequencies_[static_cast<std::size_t>(column)]);
}

std::optional<RotaryTable::AngleFault> RotaryTable::angle_fault(Index position) const {
  for (Index i = 0; i < half(); ++i) {
    const float reached = angle(position, i);
    if (!(reached < kAngleLimit)) return AngleFault{i, reached};
  }
  return std::nullopt;
}

void RotaryTable::reserve(Index positions) {
  if (positions <= positions_) return;
  const Index rows = std::max({positions, 2 * positions_, kFirstRows});
  std::vector<float> cosines;
  std::vector<float> sines;
  cosines.reserve(static_cast<std::size_t>((rows - positions_) * half()));
  sines.reserve(cosines.capacity());
  for (Index p = positions_; p < rows; ++p) {
    for (Index i = 0; i < half(); ++i) {
      // Rows made ahead may lie outside the domain; nothing reads them.
      const float at = std::min(angle(p, i), kAngleLimit);
      cosines.push_back(flush(elementary::cos(at)));
      sines.push_back(flush(elementary::sin(at)));
    }
  }
  grow(cosines_, rows, cosines);
  grow(sines_, rows, sines);
  positions_ = rows;
}

void RotaryTable::grow(DeviceArray<float>& table, Index rows, const std::vector<float>& new_rows) {
  DeviceArray<float> grown(memory_, rows * half());
  if (table.size() > 0) memory_.copy(grown.data(), table.data(), table.byte_size());
  memory_.copy_to_device(grown.data() + table.size(), new_rows.data(), new_rows.size() * sizeof(float));
  table = std::move(grown);
}

}  // namespace samba
