// UTF-8 as it arrives: whole characters, unfinished ones and bytes that are none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace samba {

// What the bytes at the start of a text are: a whole character of `length` bytes (valid, whole), or the first `length`
// bytes of one (valid, not whole), or an ill-formed part of `length` bytes (the maximal subpart of Unicode,
// section 3.9).
struct Utf8Part {
  std::size_t length;
  bool valid;
  bool whole;
};

// `text` is not empty.
Utf8Part next_utf8_part(std::string_view text);

// Bytes at the start of `text` that are well-formed UTF-8.
std::size_t valid_utf8_prefix(std::string_view text);

// The character at the start of `text`, which is well-formed and not empty; `length` receives its bytes.
char32_t first_character(std::string_view text, std::size_t& length);

// Bytes of the character that starts with `first`, in well-formed text.
constexpr std::size_t utf8_length(unsigned char first) {
  return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

void append_utf8(std::string& text, char32_t character);

// Calls on_text(stretch, continues) with the well-formed stretches of `text` and on_bytes(part) with what stands
// between them, in order; `continues`: something of `text` came before.
template <class OnText, class OnBytes>
void split_utf8(std::string_view text, OnText&& on_text, OnBytes&& on_bytes) {
  for (bool continues = false; !text.empty(); continues = true) {
    const std::size_t valid = valid_utf8_prefix(text);
    if (valid > 0) on_text(text.substr(0, valid), continues);
    text.remove_prefix(valid);
    std::size_t invalid = 0;
    while (invalid < text.size()) {
      const Utf8Part part = next_utf8_part(text.substr(invalid));
      if (part.valid && part.whole) break;
      invalid += part.length;
    }
    if (invalid > 0) on_bytes(text.substr(0, invalid));
    text.remove_prefix(invalid);
  }
}

}  // namespace samba
