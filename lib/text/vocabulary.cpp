#include "samba/text/vocabulary.h"

namespace samba {

bool Vocabulary::add(std::string_view piece, std::int32_t id) {
  if (has(id) || !ids_.emplace(piece, id).second) return false;
  if (static_cast<std::size_t>(id) >= pieces_.size()) pieces_.resize(static_cast<std::size_t>(id) + 1);
  pieces_[static_cast<std::size_t>(id)] = std::string(piece);
  return true;
}

}  // namespace samba
