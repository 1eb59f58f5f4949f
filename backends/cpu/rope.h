// RopeKernels of the cpu executor: columns in lanes, threads over rows.
#pragma once

#include "samba/backends/cpu/context.h"
#include "samba/kernels/rope.h"

namespace samba::cpu {

class RopeCpu final : public RopeKernels {
 public:
  explicit RopeCpu(Context& context) : context_(context) {}

  void rotate(const RopeShape& shape, const float* x, const float* cosines, const float* sines, float* out) override;
  void rotate_backward(const RopeShape& shape, const float* d_out, const float* cosines, const float* sines,
                       float* dx) override;

 private:
  void turn(const RopeShape& shape, bool backward, const float* in, const float* cosines, const float* sines,
            float* out);

  Context& context_;
};

}  // namespace samba::cpu
