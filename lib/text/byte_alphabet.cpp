#include "samba/text/byte_alphabet.h"

#include "samba/text/utf8.h"

namespace samba {

namespace {

constexpr char32_t kLastCharacter = 0x143;  // U+0100 + 67

bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

// Character -> byte, -1 for none.
const std::array<int, kLastCharacter + 1>& bytes_of_characters() {
  static const auto bytes = [] {
    std::array<int, kLastCharacter + 1> table{};
    table.fill(-1);
    for (int byte = 0; byte < 256; ++byte) table[byte_alphabet()[static_cast<std::size_t>(byte)]] = byte;
    return table;
  }();
  return bytes;
}

}  // namespace

const std::array<char32_t, 256>& byte_alphabet() {
  static const auto alphabet = [] {
    std::array<char32_t, 256> characters{};
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      characters[static_cast<std::size_t>(byte)] = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
    }
    return characters;
  }();
  return alphabet;
}

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) append_utf8(text, byte_alphabet()[static_cast<unsigned char>(byte)]);
  return text;
}

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  const auto& bytes = bytes_of_characters();
  std::string result;
  for (std::size_t at = 0, length = 0; at < text.size(); at += length) {
    const char32_t character = first_character(text.substr(at), length);
    if (character > kLastCharacter || bytes[character] < 0) return std::nullopt;
    result += static_cast<char>(bytes[character]);
  }
  return result;
}

}  // namespace samba
