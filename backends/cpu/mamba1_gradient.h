// Sizes that the two sides of the reverse scan share.
#pragma once

#include "samba/backends/cpu/context.h"
#include "samba/kernels/mamba1.h"
#include "samba/numerics/fold.h"

namespace samba::cpu {

inline constexpr Index kMostLanes = 16;  // of any target

// Scratch of one thread for a leaf: per vector of channels the carried dh, its decay, the dA chain and A; of one
// segment the decays, the states before and after each token, their gradients and the factors of dB; two transposed
// states.
inline Index reverse_scratch_floats(Index leaf) {
  const Index vectors = leaf + kMostLanes;
  const Index segment = (3 * mamba1::kSegment + 1) * mamba1::kStates + mamba1::kSegment + 2 * mamba1::kStates;
  return 4 * mamba1::kStates * vectors + segment * kMostLanes;
}

}  // namespace samba::cpu
