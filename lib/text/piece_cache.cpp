#include "samba/text/piece_cache.h"

#include <algorithm>

namespace samba {

void PieceCache::put(const Slot& slot, std::uint64_t hash) {
  const std::size_t first = place_of(hash);
  std::size_t place = first;
  if (slots_[first].length != 0) place = first + 1;
  if (slots_[place].length == 0) {
    ++used_;
  } else {
    place = first + (hash >> 63);  // both are taken
  }
  slots_[place] = slot;
}

void PieceCache::grow() {
  std::vector<Slot> old(slots_.empty() ? kFirstSlots : slots_.size() * 2);
  old.swap(slots_);
  used_ = 0;
  for (const Slot& slot : old) {
    if (slot.length != 0) put(slot, hash_of(std::string_view(slot.text(), slot.length)));
  }
}

void PieceCache::insert(std::string_view piece, std::uint64_t hash, std::span<const std::int32_t> ids) {
  const std::size_t text = words_of(piece.size());
  if (piece.empty() || ids.empty() || text + ids.size() > std::size(Slot().words)) return;
  if (used_ * 2 >= slots_.size() && slots_.size() < kMostSlots) grow();
  Slot slot;
  slot.hash = static_cast<std::uint32_t>(hash >> 32);
  slot.length = static_cast<std::uint16_t>(piece.size());
  slot.count = static_cast<std::uint16_t>(ids.size());
  std::memcpy(slot.words, piece.data(), piece.size());
  std::copy(ids.begin(), ids.end(), slot.words + text);
  put(slot, hash);
}

}  // namespace samba
