// The pieces of a tokenizer and their ids. Ids may leave gaps (pieces that were never given): these have no piece.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace samba {

class Vocabulary {
 public:
  static constexpr std::int32_t kMostIds = 1 << 24;

  // False when the piece or the id is there already. 0 <= id < kMostIds.
  bool add(std::string_view piece, std::int32_t id);

  // One more than the largest id.
  std::size_t size() const { return pieces_.size(); }
  bool has(std::int32_t id) const {
    return id >= 0 && static_cast<std::size_t>(id) < pieces_.size() &&
           pieces_[static_cast<std::size_t>(id)].has_value();
  }
  const std::string& piece(std::int32_t id) const { return *pieces_[static_cast<std::size_t>(id)]; }
  std::optional<std::int32_t> id_of(std::string_view piece) const {
    const auto found = ids_.find(piece);
    if (found == ids_.end()) return std::nullopt;
    return found->second;
  }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  std::vector<std::optional<std::string>> pieces_;
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> ids_;
};

}  // namespace samba
