// Names that a person typed: which of the known ones was meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace samba {

// The number of single insertions, deletions, replacements and swaps of neighbours between two names.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The known name nearest to `given`, or "" when none is near: more than a third of the longer name would change, and
// neither begins with the other.
std::string nearest_name(std::string_view given, std::span<const std::string> known);

}  // namespace samba
