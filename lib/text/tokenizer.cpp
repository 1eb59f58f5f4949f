#include "samba/text/tokenizer.h"

#include <algorithm>
#include <cstdio>

#include "samba/text/utf8.h"

namespace samba {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

class ByteTokenizer final : public Tokenizer {
 public:
  std::string kind() const override { return "bytes"; }
  Index vocabulary_size() const override { return kByteVocabulary; }

  std::string piece(std::int32_t id) const override {
    if (id < 0 || id >= kByteVocabulary) return "";
    if (id > ' ' && id < 0x7F) return std::string(1, static_cast<char>(id));
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(id));
    return text;
  }
  std::optional<std::int32_t> id_of(std::string_view text) const override {
    for (std::int32_t id = 0; id < kByteVocabulary; ++id) {
      if (piece(id) == text) return id;
    }
    return std::nullopt;
  }
  bool is_special(std::int32_t) const override { return false; }

  void encode_to(std::string_view text, const EncodeOptions&, std::vector<std::int32_t>& ids) const override {
    const std::vector<std::int32_t> tokens = byte_tokens(text);
    ids.insert(ids.end(), tokens.begin(), tokens.end());
  }
  void decode_step(std::int32_t id, DecodeState&, std::string& bytes) const override { bytes += byte_text({&id, 1}); }
};

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

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

const Tokenizer& byte_tokenizer() {
  static const ByteTokenizer tokenizer;
  return tokenizer;
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<std::int32_t> ids;
  encode_to(text, options, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  DecodeState state;
  std::string bytes;
  for (const std::int32_t id : ids) {
    if (!skip_special || !is_special(id)) decode_step(id, state, bytes);
  }
  return bytes;
}

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Part part = next_utf8_part(rest);
    if (!part.whole) break;
    text += part.valid ? rest.substr(0, part.length) : kReplacement;
    rest.remove_prefix(part.length);
  }
  pending_ = std::string(rest);
  return text;
}

std::string Utf8Stream::finish() {
  const bool unfinished = !pending_.empty();
  pending_.clear();
  return unfinished ? std::string(kReplacement) : "";
}

std::string DecodeStream::push(std::int32_t id) {
  if (skip_special_ && tokenizer_.is_special(id)) return "";
  std::string bytes;
  tokenizer_.decode_step(id, state_, bytes);
  return characters_.push(bytes);
}

}  // namespace samba
