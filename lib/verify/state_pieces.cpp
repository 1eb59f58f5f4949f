#include "samba/verify/state_pieces.h"

#include "samba/verify/slices.h"

namespace samba::verify {

ArrayMap held_pieces(const BlockState& state) {
  const auto counters = state.counters();
  const auto rows = counters.find("buffered_tokens");
  ArrayMap pieces = state.pieces();
  if (rows == counters.end()) return pieces;
  for (auto& [piece, array] : pieces) {
    if (piece.starts_with("buffer_") && array.shape().size() >= 2) array = slice(array, 1, 0, rows->second);
  }
  return pieces;
}

}  // namespace samba::verify
