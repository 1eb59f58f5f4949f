// Rotary position embedding (spec 20 section 2; its backward: spec 21 section 5 step 15).
//
// x: [batch * length, n_heads * head_dim]; row b*length + l has position first_position + l. cosines, sines:
// [positions, half], half = rotary_dim / 2, row = position. Columns from rotary_dim on are only flushed. out may not be
// x.
#pragma once

#include "samba/core/array.h"

namespace samba {

struct RopeShape {
  Index batch = 0, length = 0, n_heads = 0, head_dim = 0, rotary_dim = 0, first_position = 0;
};

class RopeKernels {
 public:
  virtual ~RopeKernels() = default;
  virtual void rotate(const RopeShape& shape, const float* x, const float* cosines, const float* sines, float* out) = 0;
  virtual void rotate_backward(const RopeShape& shape, const float* d_out, const float* cosines, const float* sines,
                               float* dx) = 0;
};

}  // namespace samba
