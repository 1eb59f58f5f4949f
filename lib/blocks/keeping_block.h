// A block whose forward can leave what its gradient needs (spec 21 section 8): the same gradient in two calls, without
// the forward that Block::backward runs again. Kept or recomputed values are the same function of the same bits.
#pragma once

#include "samba/blocks/block.h"

namespace samba {

class KeepingBlock : public Block {
 public:
  // Floats that a forward of `rows` tokens (batch * length) keeps.
  virtual Index kept_floats(Index rows) const = 0;
  // A zero-state forward; `store`: kept_floats floats, filled.
  virtual void forward_keeping(Index batch, Index length, const float* x, float* y, float* store,
                               Workspace& workspace) = 0;
  // As Block::backward, from the store of the forward of the same x.
  virtual void backward_from(Index batch, Index length, const float* x, float* store, const float* dy, float* dx,
                             std::span<float* const> weight_gradients, Workspace& workspace, StageRecorder* stages) = 0;
};

}  // namespace samba
