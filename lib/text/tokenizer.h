// Text to token ids and back. The byte vocabulary: token i is the byte i, 256 tokens, nothing else.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "samba/core/array.h"

namespace samba {

inline constexpr Index kByteVocabulary = 256;

std::vector<std::int32_t> byte_tokens(std::string_view text);
// Ids outside the vocabulary give U+FFFD.
std::string byte_text(std::span<const std::int32_t> tokens);

// Turns bytes that arrive one by one into valid UTF-8: a character is given out when it is complete, what can be none
// becomes U+FFFD (one for each maximal part of an ill-formed sequence).
class Utf8Stream {
 public:
  // The text that `bytes` completed.
  std::string push(std::string_view bytes);
  // What is left at the end: an unfinished character becomes U+FFFD.
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace samba
