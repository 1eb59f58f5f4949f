// A set of byte strings, each with a value, walked byte by byte: finds all members that a text starts with.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace samba {

class ByteTrie {
 public:
  static constexpr std::int32_t kNone = -1;
  static constexpr std::int32_t kRoot = 0;

  ByteTrie();

  // A string that is there already gets the new value. `value` >= 0.
  void insert(std::string_view text, std::int32_t value);
  bool empty() const { return values_.size() == 1; }

  // The node behind `byte`, or kNone.
  std::int32_t step(std::int32_t node, unsigned char byte) const {
    if (node == kRoot) return first_[byte];
    const std::uint64_t key = key_of(node, byte);
    for (std::size_t slot = hash(key);; slot = (slot + 1) & mask_) {
      if (keys_[slot] == key) return nodes_[slot];
      if (keys_[slot] == kFree) return kNone;
    }
  }
  // The value of the string that ends at `node`, or kNone.
  std::int32_t value(std::int32_t node) const { return values_[static_cast<std::size_t>(node)]; }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  static std::uint64_t key_of(std::int32_t node, unsigned char byte) {
    return static_cast<std::uint64_t>(node) << 8 | byte;
  }
  std::size_t hash(std::uint64_t key) const {
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15U) >> 20) & mask_;
  }
  void grow();
  std::int32_t add_node(std::int32_t node, unsigned char byte);

  std::vector<std::int32_t> first_;  // children of the root
  std::vector<std::int32_t> values_;
  std::vector<std::uint64_t> keys_;  // open addressing, at most half full
  std::vector<std::int32_t> nodes_;
  std::size_t mask_ = 0;
  std::size_t edges_ = 0;
};

}  // namespace samba
