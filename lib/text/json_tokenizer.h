// A tokenizer as a tokenizer.json states it: added tokens, normalizer, pre-tokenizer, model, decoder, template.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "samba/text/added_tokens.h"
#include "samba/text/normalizer.h"
#include "samba/text/pre_tokenizer.h"
#include "samba/text/token_decoder.h"
#include "samba/text/token_model.h"
#include "samba/text/tokenizer.h"
#include "samba/text/vocabulary.h"

namespace samba {

struct TokenizerParts {
  std::unique_ptr<Vocabulary> vocabulary;  // of the model and, behind them, the added tokens
  std::vector<AddedToken> added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<TokenModel> model;
  TokenDecoder decoder;
  std::vector<std::int32_t> prefix;  // special tokens before and behind a text, when they are asked for
  std::vector<std::int32_t> suffix;
};

// Reads the text of a tokenizer.json. Error(value, unsupported): the message begins with `source` and names the field.
TokenizerParts read_tokenizer_json(std::string_view text, const std::string& source);

class PartsTokenizer final : public Tokenizer {
 public:
  explicit PartsTokenizer(TokenizerParts parts);
  ~PartsTokenizer() override;

  std::string kind() const override { return parts_.model->kind(); }
  Index vocabulary_size() const override { return static_cast<Index>(parts_.vocabulary->size()); }
  std::string piece(std::int32_t id) const override;
  std::optional<std::int32_t> id_of(std::string_view piece) const override { return parts_.vocabulary->id_of(piece); }
  bool is_special(std::int32_t id) const override;
  void encode_to(std::string_view text, const EncodeOptions& options, std::vector<std::int32_t>& ids) const override;
  void decode_step(std::int32_t id, DecodeState& state, std::string& bytes) const override;

 private:
  struct Scratch;
  struct Encoding;
  // Working memory is kept and handed to the next call.
  std::unique_ptr<Scratch> take_scratch() const;
  void give_back(std::unique_ptr<Scratch> scratch) const;

  TokenizerParts parts_;
  AddedTokenFinder raw_added_;         // in the text as given
  AddedTokenFinder normalized_added_;  // in the normalized text
  std::vector<bool> special_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> free_;
};

}  // namespace samba
