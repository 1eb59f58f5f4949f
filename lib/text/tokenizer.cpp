#include "samba/text/tokenizer.h"

#include <algorithm>

namespace samba {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// What the bytes at the start of `text` are: a whole character of `length` bytes, or the first `length` bytes of one
// (`whole` false, `valid` true), or an ill-formed part of `length` bytes.
struct Sequence {
  std::size_t length;
  bool valid;
  bool whole;
};

Sequence next_sequence(std::string_view text) {
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

}  // namespace

std::vector<std::int32_t> byte_tokens(std::string_view text) {
  std::vector<std::int32_t> tokens(text.size());
  std::transform(text.begin(), text.end(), tokens.begin(), [](char c) { return static_cast<unsigned char>(c); });
  return tokens;
}

std::string byte_text(std::span<const std::int32_t> tokens) {
  std::string text;
  for (const std::int32_t token : tokens) {
    if (token >= 0 && token < kByteVocabulary) {
      text += static_cast<char>(token);
    } else {
      text += kReplacement;
    }
  }
  return text;
}

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Sequence sequence = next_sequence(rest);
    if (!sequence.whole) break;
    text += sequence.valid ? rest.substr(0, sequence.length) : kReplacement;
    rest.remove_prefix(sequence.length);
  }
  pending_ = std::string(rest);
  return text;
}

std::string Utf8Stream::finish() {
  const bool unfinished = !pending_.empty();
  pending_.clear();
  return unfinished ? std::string(kReplacement) : "";
}

}  // namespace samba
