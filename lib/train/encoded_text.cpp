#include "samba/train/encoded_text.h"

#include <algorithm>
#include <string>

#include "samba/core/error.h"

namespace samba {

EncodedText::EncodedText(const TextData& text, std::uint64_t training_bytes, const ModelText& tokenizer, Index vocab)
    : tokenizer_(tokenizer) {
  const auto encode = [&](std::uint64_t begin, std::uint64_t end) {
    text.for_each_document(begin, end, [&](std::string_view document, bool whole) {
      tokenizer_.tokenizer->encode_to(document, {}, tokens_);
      if (whole && tokenizer_.eos) tokens_.push_back(*tokenizer_.eos);
    });
  };
  encode(0, training_bytes);
  training_tokens_ = tokens_.size();
  encode(training_bytes, text.size());
  const auto outside =
      std::find_if(tokens_.begin(), tokens_.end(), [&](std::int32_t id) { return id < 0 || id >= vocab; });
  if (outside != tokens_.end()) {
    refuse_value("/model/vocab: the text has the token " + std::to_string(*outside) + ", outside [0, " +
                 std::to_string(vocab) + ")");
  }
}

std::uint64_t EncodedText::bytes_of(std::uint64_t first, std::uint64_t last) const {
  // In the middle of a text: a space at the start of the first token counts.
  DecodeState state{.begun = true, .stripped = 0, .stripping = false};
  std::string bytes;
  std::uint64_t count = 0;
  for (std::uint64_t i = first; i < last; ++i) {
    const std::int32_t id = tokens_[i];
    if (id == tokenizer_.eos || tokenizer_.tokenizer->is_special(id)) continue;
    bytes.clear();
    tokenizer_.tokenizer->decode_step(id, state, bytes);
    count += bytes.size();
  }
  return count;
}

std::uint64_t character_border(const TextData& text, std::uint64_t end) {
  std::uint64_t border = end;
  std::uint8_t byte = 0;
  while (border > 0 && border < text.size() && end - border < 3) {
    text.copy(border, {&byte, 1});
    if ((byte & 0xC0U) != 0x80U) return border;
    --border;
  }
  if (border == 0 || border >= text.size()) return border;
  text.copy(border, {&byte, 1});
  return (byte & 0xC0U) == 0x80U ? end : border;  // such a run is no UTF-8: it has no borders
}

}  // namespace samba
