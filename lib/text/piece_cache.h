// Remembers the tokens of pieces seen before: most text repeats few words. Of bounded size: a piece that finds both of
// its places taken drives out one of them.
//
// A slot is one cache line that holds text and tokens, so that asking for a piece that is not there costs one access.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace samba {

class PieceCache {
 public:
  static constexpr std::size_t kLongestPiece = 48;  // longer ones seldom come again

  static std::uint64_t hash_of(std::string_view piece);

  // The tokens of `piece`, whose hash is `hash`; false when it is not known.
  bool find(std::string_view piece, std::uint64_t hash, std::vector<std::int32_t>& ids) const {
    if (slots_.empty()) return false;
    const Slot* slot = &slots_[place_of(hash)];
    const auto tag = static_cast<std::uint32_t>(hash >> 32);
    slot += slot->hash != tag ? 1 : 0;
    if (slot->hash != tag || slot->length != piece.size() || !equal(slot->text(), piece)) return false;
    const std::int32_t* const first = slot->words + words_of(slot->length);
    ids.insert(ids.end(), first, first + slot->count);
    return true;
  }
  // `piece` is not there yet. What is too long for a slot is not kept.
  void insert(std::string_view piece, std::uint64_t hash, std::span<const std::int32_t> ids);

 private:
  static constexpr std::size_t kFirstSlots = std::size_t{1} << 10;  // 64 KiB
  static constexpr std::size_t kMostSlots = std::size_t{1} << 15;   // 2 MiB
  struct alignas(64) Slot {
    std::uint32_t hash = 0;
    std::uint16_t length = 0;     // of the text; 0: free
    std::uint16_t count = 0;      // of the tokens
    std::int32_t words[14] = {};  // the text, then the tokens
    const char* text() const { return reinterpret_cast<const char*>(words); }
  };
  static_assert(sizeof(Slot) == 64);
  static constexpr std::size_t words_of(std::size_t length) { return (length + 3) / 4; }
  static bool equal(const char* text, std::string_view piece);
  // The first of the two places of a hash.
  std::size_t place_of(std::uint64_t hash) const {
    return static_cast<std::size_t>(hash) & (slots_.size() - 1) & ~std::size_t{1};
  }
  void put(const Slot& slot, std::uint64_t hash);
  void grow();

  std::vector<Slot> slots_;
  std::size_t used_ = 0;
};

namespace piece_words {

template <class Word>
std::uint64_t load(const char* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

}  // namespace piece_words

// The last word overlaps the one before it, here and below: no loop over single bytes.
inline bool PieceCache::equal(const char* text, std::string_view piece) {
  using namespace piece_words;
  const char* const data = piece.data();
  const std::size_t size = piece.size();
  std::uint64_t different = 0;
  if (size >= 8) {
    for (std::size_t at = 0; at + 8 < size; at += 8) {
      different |= load<std::uint64_t>(text + at) ^ load<std::uint64_t>(data + at);
    }
    different |= load<std::uint64_t>(text + size - 8) ^ load<std::uint64_t>(data + size - 8);
  } else if (size >= 4) {
    different = load<std::uint32_t>(text) ^ load<std::uint32_t>(data);
    different |= load<std::uint32_t>(text + size - 4) ^ load<std::uint32_t>(data + size - 4);
  } else {
    for (std::size_t at = 0; at < size; ++at)
      different |= load<std::uint8_t>(text + at) ^ load<std::uint8_t>(data + at);
  }
  return different == 0;
}

inline std::uint64_t PieceCache::hash_of(std::string_view piece) {
  using namespace piece_words;
  const char* const data = piece.data();
  const std::size_t size = piece.size();
  std::uint64_t hash = size * 0x9E3779B97F4A7C15U;
  const auto mix = [&](std::uint64_t word) {
    hash = (hash ^ word) * 0xD6E8FEB86659FD93U;
    hash ^= hash >> 32;
  };
  if (size >= 8) {
    for (std::size_t at = 0; at + 8 < size; at += 8) mix(load<std::uint64_t>(data + at));
    mix(load<std::uint64_t>(data + size - 8));
  } else if (size >= 4) {
    mix(load<std::uint32_t>(data) << 32 | load<std::uint32_t>(data + size - 4));
  } else if (size > 0) {
    mix(load<std::uint8_t>(data) << 16 | load<std::uint8_t>(data + size / 2) << 8 |
        load<std::uint8_t>(data + size - 1));
  }
  hash *= 0xD6E8FEB86659FD93U;
  return hash ^ hash >> 29;
}

}  // namespace samba
