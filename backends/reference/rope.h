// RopeKernels of the reference executor: plain scalar loops, straight from the spec.
#pragma once

#include "samba/kernels/rope.h"

namespace samba::reference {

class RopeReference final : public RopeKernels {
 public:
  void rotate(const RopeShape& shape, const float* x, const float* cosines, const float* sines, float* out) override;
  void rotate_backward(const RopeShape& shape, const float* d_out, const float* cosines, const float* sines,
                       float* dx) override;
};

}  // namespace samba::reference
