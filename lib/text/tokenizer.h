// Text to token ids and back.
//
// A tokenizer is immutable and may be used by several threads at once. Text is bytes: what is no UTF-8 goes through
// exactly wherever the vocabulary has a token for every byte.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "samba/core/array.h"
#include "samba/core/files.h"

namespace samba {

inline constexpr Index kByteVocabulary = 256;

// The byte vocabulary: token i is the byte i, 256 tokens, nothing else.
std::vector<std::int32_t> byte_tokens(std::string_view text);
// Ids outside the vocabulary give U+FFFD.
std::string byte_text(std::span<const std::int32_t> tokens);

struct EncodeOptions {
  bool add_special_tokens = false;  // what the model's form puts around a text: <s>, </s>
  bool special_in_text = true;      // "<|im_end|>" in the text is that token; false: its letters
};

// Where a decoding is; a new one is at the start of the text.
struct DecodeState {
  bool begun = false;  // a token that counts as the first one was seen
  int stripped = 0;    // characters taken away at the start
  bool stripping = true;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string kind() const = 0;  // "bytes", "byte-level BPE", "BPE", "Unigram", ...
  // One more than the largest id.
  virtual Index vocabulary_size() const = 0;
  // The token as the tokenizer's file spells it; empty for an id that has none.
  virtual std::string piece(std::int32_t id) const = 0;
  virtual std::optional<std::int32_t> id_of(std::string_view piece) const = 0;
  // A token that stands for no text (<s>, <|im_end|>), by the file.
  virtual bool is_special(std::int32_t id) const = 0;

  // Appends the tokens of `text`. Error(value): text that the vocabulary has no tokens for.
  virtual void encode_to(std::string_view text, const EncodeOptions& options, std::vector<std::int32_t>& ids) const = 0;
  // Appends the bytes that token `id` adds to the text. An id outside the vocabulary adds U+FFFD.
  virtual void decode_step(std::int32_t id, DecodeState& state, std::string& bytes) const = 0;

  std::vector<std::int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // The bytes of a text; they are UTF-8 when the tokens came from UTF-8.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;
};

std::unique_ptr<Tokenizer> make_byte_tokenizer();
const Tokenizer& byte_tokenizer();  // one that lives for good

// A folder with tokenizer.json or tokenizer.model, or such a file itself, or a GGUF file with a tokenizer in its
// metadata (told by content). Error(value, unsupported, corrupt): the message names file and field.
std::unique_ptr<Tokenizer> load_tokenizer(const Path& path);

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

// Turns tokens that arrive one by one into text, whole characters only.
class DecodeStream {
 public:
  explicit DecodeStream(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}
  // The text that token `id` completed.
  std::string push(std::int32_t id);
  std::string finish() { return characters_.finish(); }

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  DecodeState state_;
  Utf8Stream characters_;
};

}  // namespace samba
