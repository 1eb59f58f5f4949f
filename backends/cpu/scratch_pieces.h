// Cuts pieces from the scratch memory of a thread, one behind the other.
#pragma once

#include "samba/core/array.h"

namespace samba::cpu {

class ScratchPieces {
 public:
  explicit ScratchPieces(float* scratch) : next_(scratch) {}
  float* operator()(Index count) {
    float* const piece = next_;
    next_ += count;
    return piece;
  }

 private:
  float* next_;
};

}  // namespace samba::cpu
