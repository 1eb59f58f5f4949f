// Inside lib/verify: what the pieces of a decode state say.
#pragma once

#include <string>

#include "samba/blocks/block.h"

namespace samba::verify {

// The exposed pieces by name; of a token buffer the rows it holds: what lies behind them is left over from before.
ArrayMap held_pieces(const BlockState& state);

}  // namespace samba::verify
