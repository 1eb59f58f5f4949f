#include "samba/blocks/block.h"

namespace samba {

void Block::step_rows(std::span<BlockState* const> states, const float* x, float* y, Workspace& workspace) {
  for (std::size_t row = 0; row < states.size(); ++row) {
    const Index first = static_cast<Index>(row) * d_model();
    forward(1, 1, x + first, y + first, states[row], workspace, nullptr);
  }
}

}  // namespace samba
