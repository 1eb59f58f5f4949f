// JSON text of unknown origin: its depth and its number of values are bounded, so that reading it takes no more memory
// than its length warrants and that no later walk over it goes too deep.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace samba {

inline constexpr int kDeepestText = 64;                               // objects and lists inside each other
inline constexpr std::size_t kMostTextValues = std::size_t{1} << 22;  // keys are not counted

// The value of a JSON text. When it is not JSON, nests too deep, has too many values or an object that has a key twice,
// the result is discarded (is_discarded()) and `fault` says why.
nlohmann::json parse_bounded(std::string_view text, std::string& fault);

// The same where any fault is one: a line of a record that may have been cut.
nlohmann::json parse_bounded(std::string_view text);

}  // namespace samba
