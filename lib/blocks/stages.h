// Intermediate values for whoever asks: `samba verify` compares them with the stages of a recorded case.
#pragma once

#include <string_view>

#include "samba/core/array.h"

namespace samba {

class StageRecorder {
 public:
  virtual ~StageRecorder() = default;
  // `device` points to element_count(shape) floats of the executor's memory, valid during the call only.
  // Names and shapes are those of the block's spec page, without the prefix "stage.".
  virtual void record(std::string_view name, const Shape& shape, const float* device) = 0;
};

}  // namespace samba
