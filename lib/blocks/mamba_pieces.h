// Long prefills of the Mamba blocks run in pieces that continue the state: the same bits (spec 30 section 4, spec 31
// section 5, spec 40 section 5), but what a piece makes fits the last-level cache, and scratch memory stops growing
// with the length.
#pragma once

#include <algorithm>
#include <array>

#include "samba/blocks/block.h"
#include "samba/core/array.h"

namespace samba {

// The states of a call that goes on from none.
inline constexpr std::array<BlockState*, 1> kNoState = {nullptr};

inline constexpr Index kMambaPiece = 512;  // tokens; a multiple of every kind's chunk

// run(first, count) for the pieces of `length` tokens. `open`: tokens in the open chunk before them; all pieces but
// the last end where a chunk ends.
template <class Run>
void over_pieces(Index length, Index open, Run&& run) {
  for (Index first = 0; first < length;) {
    const Index count = std::min(length - first, first == 0 ? kMambaPiece - open : kMambaPiece);
    run(first, count);
    first += count;
  }
}

}  // namespace samba
