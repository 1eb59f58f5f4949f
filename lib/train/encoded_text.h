// The tokens of a training text under a tokenizer: every file is a document, encoded by itself, with the tokenizer's
// end token behind it where it has one. Held in memory, four bytes a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "samba/text/model_text.h"
#include "samba/train/data.h"

namespace samba {

class EncodedText {
 public:
  // The first `training_bytes` bytes and those held back behind them are encoded apart, so that no token lies on the
  // border. Error(value): text that the tokenizer has no tokens for, a token outside the vocabulary.
  EncodedText(const TextData& text, std::uint64_t training_bytes, const ModelText& tokenizer, Index vocab);

  std::uint64_t size() const { return tokens_.size(); }
  std::uint64_t training_tokens() const { return training_tokens_; }
  std::span<const std::int32_t> tokens() const { return tokens_; }

  // The bytes of text that tokens [first, last) stand for; an end token stands for none.
  std::uint64_t bytes_of(std::uint64_t first, std::uint64_t last) const;

 private:
  const ModelText& tokenizer_;
  std::vector<std::int32_t> tokens_;
  std::uint64_t training_tokens_ = 0;
};

// `end`, or the start of the character that it would cut.
std::uint64_t character_border(const TextData& text, std::uint64_t end);

}  // namespace samba
