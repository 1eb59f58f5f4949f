// What a tokenizer.model of SentencePiece says, as far as it decides how text is cut: pieces with scores and types, the
// kind of model, what happens to white space, the map of the normalizer. GGUF keeps the same as metadata.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "samba/formats/gguf_metadata.h"

namespace samba {

struct SentencePieceModel {
  // The numbers of SentencePiece and of tokenizer.ggml.token_type.
  enum Type : std::int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  enum class Kind : std::int32_t { unigram = 1, bpe = 2, word = 3, character = 4 };
  struct Piece {
    std::string text;
    float score = 0.0F;
    std::int32_t type = kNormal;
  };

  std::vector<Piece> pieces;
  Kind kind = Kind::unigram;
  bool byte_fallback = false;
  bool space_behind = false;                                      // a word's space is part of the piece before it
  std::int64_t unknown = -1, begin = -1, end = -1, padding = -1;  // ids; negative: none
  std::string characters_map;                                     // of the normalizer, precompiled; empty: none
  bool space_in_front = true;                                     // of a text
  bool drops_spaces = true;                                       // at the ends, and repeated ones
  bool marks_spaces = true;                                       // as U+2581
};

// Error(corrupt): `content` is no such file.
SentencePieceModel read_sentencepiece_model(std::string_view content, const std::string& source);
// A file that SentencePiece's library loads.
std::string sentencepiece_bytes(const SentencePieceModel& model);

// Of GGUF metadata whose tokenizer.ggml.model is "t5". Error(value): the message names the field.
SentencePieceModel sentencepiece_of_gguf(const GgufMetadata& metadata, const std::string& source);

}  // namespace samba
