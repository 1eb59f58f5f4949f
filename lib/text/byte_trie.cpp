#include "samba/text/byte_trie.h"

namespace samba {

namespace {
constexpr std::size_t kFirstSlots = 64;
}

ByteTrie::ByteTrie()
    : first_(256, kNone),
      values_(1, kNone),
      keys_(kFirstSlots, kFree),
      nodes_(kFirstSlots, kNone),
      mask_(kFirstSlots - 1) {}

void ByteTrie::grow() {
  std::vector<std::uint64_t> keys(keys_.size() * 2, kFree);
  std::vector<std::int32_t> nodes(keys.size(), kNone);
  keys.swap(keys_);
  nodes.swap(nodes_);
  mask_ = keys_.size() - 1;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] == kFree) continue;
    std::size_t slot = hash(keys[i]);
    while (keys_[slot] != kFree) slot = (slot + 1) & mask_;
    keys_[slot] = keys[i];
    nodes_[slot] = nodes[i];
  }
}

std::int32_t ByteTrie::add_node(std::int32_t node, unsigned char byte) {
  const auto added = static_cast<std::int32_t>(values_.size());
  values_.push_back(kNone);
  if (node == kRoot) {
    first_[byte] = added;
    return added;
  }
  if (++edges_ * 2 > keys_.size()) grow();
  const std::uint64_t key = key_of(node, byte);
  std::size_t slot = hash(key);
  while (keys_[slot] != kFree) slot = (slot + 1) & mask_;
  keys_[slot] = key;
  nodes_[slot] = added;
  return added;
}

void ByteTrie::insert(std::string_view text, std::int32_t value) {
  std::int32_t node = kRoot;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const std::int32_t next = step(node, byte);
    node = next != kNone ? next : add_node(node, byte);
  }
  values_[static_cast<std::size_t>(node)] = value;
}

}  // namespace samba
