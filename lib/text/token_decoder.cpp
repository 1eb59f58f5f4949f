#include "samba/text/token_decoder.h"

#include <cctype>
#include <charconv>

#include "samba/text/byte_alphabet.h"

namespace samba {

namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

bool is_hex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }

void apply(const TokenDecoder::ByteLevel&, bool, std::string& text) {
  if (auto bytes = from_byte_alphabet(text)) text = std::move(*bytes);
}

void apply(const TokenDecoder::ByteFallback&, bool, std::string& text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>' || !is_hex(text[3]) || !is_hex(text[4])) return;
  unsigned value = 0;
  std::from_chars(text.data() + 3, text.data() + 5, value, 16);
  text.assign(1, static_cast<char>(static_cast<unsigned char>(value)));
}

void apply(const TokenDecoder::Replace& replace, bool, std::string& text) {
  replace_all(text, replace.text, replace.content);
}

void apply(const TokenDecoder::Metaspace& metaspace, bool first, std::string& text) {
  replace_all(text, metaspace.replacement, first && metaspace.drops_first ? "" : " ");
}

void apply(const TokenDecoder::StripToken& strip, bool, std::string& text) {
  for (int i = 0; i < strip.start && text.starts_with(strip.content); ++i) text.erase(0, strip.content.size());
  for (int i = 0; i < strip.stop && text.ends_with(strip.content); ++i) text.erase(text.size() - strip.content.size());
}

}  // namespace

void TokenDecoder::strip_start(std::string content, int count) {
  stripped_ = std::move(content);
  strip_count_ = count;
}

// The stripped character may itself arrive in parts only when a token holds a part of it; such tokens (single bytes of
// a character of several bytes) end the stripping.
void TokenDecoder::strip(std::string_view text, DecodeState& state, std::string& bytes) const {
  while (state.stripping && state.stripped < strip_count_ && text.starts_with(stripped_)) {
    text.remove_prefix(stripped_.size());
    ++state.stripped;
  }
  if (!text.empty()) state.stripping = false;
  bytes += text;
}

void TokenDecoder::decode(std::string_view piece, DecodeState& state, std::string& bytes) const {
  std::string text(piece);
  const bool first = !state.begun;
  state.begun = true;
  for (const Step& step : steps_) {
    std::visit([&](const auto& one) { apply(one, first, text); }, step);
  }
  strip(text, state, bytes);
}

}  // namespace samba
