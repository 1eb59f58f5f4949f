// The characters that stand for bytes in the vocabularies of byte-level BPE: printable bytes of Latin-1 stand for
// themselves, the other 68 are U+0100, U+0101, ... in the order of the bytes. A space is U+0120, written as G with a
// dot.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace samba {

const std::array<char32_t, 256>& byte_alphabet();

// Bytes written in that alphabet.
std::string to_byte_alphabet(std::string_view bytes);

// The bytes that a text in that alphabet stands for; none when one of its characters stands for no byte.
std::optional<std::string> from_byte_alphabet(std::string_view text);

}  // namespace samba
