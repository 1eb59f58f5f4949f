#include "samba/text/utf8.h"

#include <cstring>

namespace samba {

Utf8Part next_utf8_part(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return {1, true, true};
  std::size_t needed = 0;
  unsigned low = 0x80;  // the range of the second byte keeps out overlong forms, surrogates and > U+10FFFF
  unsigned high = 0xBF;
  if (first >= 0xC2 && first <= 0xDF) {
    needed = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    needed = 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    needed = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  } else {
    return {1, false, true};
  }
  for (std::size_t i = 1; i < needed; ++i) {
    if (i == text.size()) return {i, true, false};
    if (byte(i) < low || byte(i) > high) return {i, false, true};
    low = 0x80;
    high = 0xBF;
  }
  return {needed, true, true};
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t word = 0;
    if (text.size() - at >= sizeof word) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & 0x8080808080808080U) == 0) {
        at += sizeof word;
        continue;
      }
    }
    const Utf8Part part = next_utf8_part(text.substr(at));
    if (!part.valid || !part.whole) break;
    at += part.length;
  }
  return at;
}

char32_t first_character(std::string_view text, std::size_t& length) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t first = byte(0);
  length = utf8_length(static_cast<unsigned char>(first));
  switch (length) {
    case 1:
      return first;
    case 2:
      return (first & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  }
}

void append_utf8(std::string& text, char32_t character) {
  const auto byte = [&](char32_t value) { text += static_cast<char>(static_cast<unsigned char>(value)); };
  if (character < 0x80) {
    byte(character);
  } else if (character < 0x800) {
    byte(0xC0 | character >> 6);
    byte(0x80 | (character & 0x3F));
  } else if (character < 0x10000) {
    byte(0xE0 | character >> 12);
    byte(0x80 | (character >> 6 & 0x3F));
    byte(0x80 | (character & 0x3F));
  } else {
    byte(0xF0 | character >> 18);
    byte(0x80 | (character >> 12 & 0x3F));
    byte(0x80 | (character >> 6 & 0x3F));
    byte(0x80 | (character & 0x3F));
  }
}

}  // namespace samba
