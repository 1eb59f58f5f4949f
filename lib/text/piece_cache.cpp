#include "samba/text/piece_cache.h"

namespace samba {

void PieceCache::insert(std::string_view piece, std::span<const std::int32_t> ids) {
  if (slots_.empty() || used_ * 2 >= kSlots) {
    slots_.assign(kSlots, Slot{});
    text_.clear();
    ids_.clear();
    used_ = 0;
  }
  const std::uint64_t hash = hash_of(piece);
  std::size_t i = hash & kMask;
  while (slots_[i].count != 0) i = (i + 1) & kMask;
  slots_[i] = {static_cast<std::uint32_t>(hash >> 32), static_cast<std::uint32_t>(text_.size()),
               static_cast<std::uint32_t>(ids_.size()), static_cast<std::uint16_t>(piece.size()),
               static_cast<std::uint16_t>(ids.size())};
  text_ += piece;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++used_;
}

}  // namespace samba
