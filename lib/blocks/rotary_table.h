// The rotary table of spec 20 section 2 on an executor: inverse frequencies, and cosines and sines of every position
// so far needed. An entry depends on (position, column, options) alone, so layers of equal options share one table.
//
// Threads: one at a time.
#pragma once

#include <optional>
#include <vector>

#include "samba/core/array.h"
#include "samba/kernels/executor.h"

namespace samba {

struct RopeScaling {
  enum class Kind { none, linear, llama3 };
  Kind kind = Kind::none;
  float factor = 1.0F;
  float low_freq_factor = 1.0F;  // llama3 alone from here on
  float high_freq_factor = 1.0F;
  Index original_max_position_embeddings = 0;

  bool operator==(const RopeScaling&) const = default;
};

// The positions whose angles all lie in the domain of the elementary sine and cosine: [0, result), at most `most`.
Index rotary_position_limit(Index rotary_dim, float theta, const RopeScaling& scaling, Index most);

class RotaryTable {
 public:
  // Angles at and above this are outside the domain of the elementary sine and cosine.
  static constexpr float kAngleLimit = 8192.0F;

  struct AngleFault {
    Index column;
    float angle;
  };

  // rotary_dim: the leading columns of a head that are rotated, even. The options are those a block has checked.
  RotaryTable(Executor& executor, Index rotary_dim, float theta, const RopeScaling& scaling = {});

  Index rotary_dim() const { return 2 * half(); }
  Index half() const { return static_cast<Index>(inverse_frequencies_.size()); }
  const std::vector<float>& inverse_frequencies() const { return inverse_frequencies_; }  // stage rope.inv_freq [half]

  // The first column whose angle at `position` reaches kAngleLimit.
  std::optional<AngleFault> angle_fault(Index position) const;

  // Makes the rows [0, positions) valid; earlier rows are kept, the pointers below may change. Some rows are made
  // ahead, so that a decode step seldom makes any.
  void reserve(Index positions);

  // Device tables [positions, half], what RopeKernels take.
  const float* cosines() const { return cosines_.data(); }
  const float* sines() const { return sines_.data(); }

 private:
  float angle(Index position, Index column) const;
  void grow(DeviceArray<float>& table, Index rows, const std::vector<float>& new_rows);

  Memory& memory_;
  std::vector<float> inverse_frequencies_;
  Index positions_ = 0;
  DeviceArray<float> cosines_;
  DeviceArray<float> sines_;
};

}  // namespace samba
