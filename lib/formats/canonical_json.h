// JSON as checkpoints hold it (spec 62 section 2, spec 50 section B5): a strict reader, and the one text of a value
// that digests are over.
#pragma once

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace samba {

struct JsonReadOptions {
  // Takes the escape of a surrogate that is no part of a pair: it is kept as the three bytes it would have in UTF-8,
  // and canonical_json writes it as the escape again.
  bool lone_surrogates = false;
  std::size_t most_digits = std::numeric_limits<std::size_t>::max();  // of an integer
};

// Parses RFC 8259 JSON in UTF-8. Refuses, with Error(value), what the files must not hold: duplicate keys, NaN and
// Infinity, numbers beyond binary64, nesting deeper than kDeepestJson, anything behind the value.
//
// An integer outside 64 bits is kept as its digits (a binary value of subtype kBigIntegerSubtype), so that it is
// neither taken for an integer nor rounded to a double.
nlohmann::json parse_json(std::string_view text, const JsonReadOptions& options = {});

inline constexpr int kDeepestJson = 256;
inline constexpr std::uint64_t kBigIntegerSubtype = 1;

// How control characters are written: \u000a always, or \n where there is a letter for it (b, f, n, r, t).
enum class ControlEscapes { hexadecimal, short_forms };

// Canonical text: ASCII, keys sorted by code point, no spaces, doubles by their shortest text. Error(value) for NaN and
// infinity and for text that is not UTF-8.
std::string canonical_json(const nlohmann::json& value, ControlEscapes escapes = ControlEscapes::hexadecimal);

// The shortest decimal text that reads back to the same double: 1.0, 0.001, 1e-05, 1e+16. `value` is finite.
std::string shortest_number(double value);

// An integer in plain decimal of at most 64 bits; a boolean or a number with a point is none.
bool is_integer(const nlohmann::json& value);

}  // namespace samba
