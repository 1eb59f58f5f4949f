// Remembers the tokens of pieces seen before: most text repeats few words. Of bounded size: when full it starts anew.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace samba {

class PieceCache {
 public:
  static constexpr std::size_t kLongestPiece = 64;  // longer ones seldom come again

  // The tokens of `piece`; false when it is not known.
  bool find(std::string_view piece, std::vector<std::int32_t>& ids) const {
    if (slots_.empty()) return false;
    const std::uint64_t hash = hash_of(piece);
    for (std::size_t i = hash & kMask; slots_[i].count != 0; i = (i + 1) & kMask) {
      const Slot& slot = slots_[i];
      if (slot.hash != static_cast<std::uint32_t>(hash >> 32) || slot.length != piece.size()) continue;
      if (std::string_view(text_).substr(slot.text, slot.length) != piece) continue;
      ids.insert(ids.end(), ids_.begin() + slot.ids, ids_.begin() + slot.ids + slot.count);
      return true;
    }
    return false;
  }
  // `ids` is not empty; `piece` is not there yet.
  void insert(std::string_view piece, std::span<const std::int32_t> ids);

 private:
  static constexpr std::size_t kSlots = std::size_t{1} << 16;
  static constexpr std::size_t kMask = kSlots - 1;
  struct Slot {
    std::uint32_t hash = 0;
    std::uint32_t text = 0;
    std::uint32_t ids = 0;
    std::uint16_t length = 0;
    std::uint16_t count = 0;  // 0: free
  };
  static std::uint64_t hash_of(std::string_view piece);

  std::vector<Slot> slots_;
  std::string text_;
  std::vector<std::int32_t> ids_;
  std::size_t used_ = 0;
};

inline std::uint64_t PieceCache::hash_of(std::string_view piece) {
  std::uint64_t hash = piece.size() * 0x9E3779B97F4A7C15U;
  const char* at = piece.data();
  std::size_t left = piece.size();
  while (left > 0) {
    std::uint64_t word = 0;
    const std::size_t step = left < sizeof word ? left : sizeof word;
    if (step == sizeof word) {
      __builtin_memcpy(&word, at, sizeof word);
    } else {
      for (std::size_t i = 0; i < step; ++i) word = word << 8 | static_cast<unsigned char>(at[i]);
    }
    hash = (hash ^ word) * 0xD6E8FEB86659FD93U;
    hash ^= hash >> 32;
    at += step;
    left -= step;
  }
  return hash * 0xD6E8FEB86659FD93U;
}

}  // namespace samba
