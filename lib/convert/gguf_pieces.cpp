#include "samba/convert/gguf_pieces.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace samba {

namespace {

constexpr std::string_view kSpace = "\u2581";
constexpr std::ptrdiff_t kBytes = 256;

// Empty, or why the pieces cannot be held.
std::string add_pieces(GgufFields& fields, const SentencePieceModel& model, std::size_t rows) {
  if (model.pieces.size() > rows) {
    return "it has " + std::to_string(model.pieces.size()) + " pieces, the embedding " + std::to_string(rows) + " rows";
  }
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<std::int32_t> types;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (std::string why = why_no_token(piece.text); !why.empty()) return why;
    tokens.push_back(piece.text);
    scores.push_back(piece.score);
    types.push_back(piece.type);
  }
  // llama.cpp looks for unused pieces too: these are worse than any other way to write them.
  constexpr float kWorstScore = -1e9F;
  for (std::size_t row = tokens.size(); row < rows; ++row) {
    tokens.push_back("[PAD" + std::to_string(row) + "]");
    scores.push_back(kWorstScore);
    types.push_back(SentencePieceModel::kUnused);
  }
  fields.text("tokenizer.ggml.pre", "default");
  fields.texts("tokenizer.ggml.tokens", tokens);
  fields.numbers("tokenizer.ggml.scores", scores);
  fields.integers("tokenizer.ggml.token_type", types);
  fields.flag("tokenizer.ggml.add_space_prefix", model.space_in_front);
  return "";
}

}  // namespace

std::string why_no_token(const std::string& piece) {
  if (piece.find('\0') == std::string::npos) return "";
  return "its piece " + nlohmann::json(piece).dump() + " has a zero byte, where llama.cpp ends a text";
}

std::string add_unigram_fields(GgufFields& fields, const SentencePieceModel& model, std::size_t rows, bool ends_text) {
  if (model.byte_fallback) return "it falls back to bytes, which llama.cpp's Unigram does not";
  if (model.space_behind || !model.marks_spaces) return "it treats white space in a way that GGUF has no field for";
  if (model.unknown < 0) return "it has no unknown piece";
  GgufFields added = fields;
  added.text("tokenizer.ggml.model", "t5");
  if (std::string why = add_pieces(added, model, rows); !why.empty()) return why;
  added.flag("tokenizer.ggml.remove_extra_whitespaces", model.drops_spaces);
  if (!model.characters_map.empty()) added.bytes(kGgufCharactersMap, model.characters_map);
  added.count("tokenizer.ggml.unknown_token_id", static_cast<std::uint32_t>(model.unknown));
  added.flag("tokenizer.ggml.add_eos_token", ends_text);
  fields = std::move(added);
  return "";
}

namespace {

// What llama.cpp's BPE does beyond merging pieces by score. Empty, or why the model does otherwise.
std::string other_than_llama(const SentencePieceModel& model) {
  const auto count = [&](std::int32_t type) {
    return std::count_if(model.pieces.begin(), model.pieces.end(),
                         [type](const SentencePieceModel::Piece& piece) { return piece.type == type; });
  };
  if (!model.byte_fallback || count(SentencePieceModel::kByte) != kBytes) {
    return "it does not fall back to bytes, as llama.cpp's BPE does";
  }
  if (!model.characters_map.empty()) return "its normalizer changes characters, which llama.cpp's BPE does not";
  if (model.drops_spaces) return "it takes away repeated white space, which llama.cpp's BPE keeps";
  if (model.space_behind || !model.marks_spaces) return "it treats white space in a way that GGUF has no field for";
  if (model.unknown < 0) return "it has no unknown piece";
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (piece.type == SentencePieceModel::kUnused) {
      return "its piece '" + piece.text + "' is unused, which llama.cpp's BPE takes for a piece as any";
    }
    if (piece.type != SentencePieceModel::kUserDefined) continue;
    if (model.space_in_front) {
      return "its piece '" + piece.text + "' is user-defined: llama.cpp puts a space behind it";
    }
    if (piece.text.find(kSpace) != std::string::npos) {
      return "its piece '" + piece.text + "' is user-defined: llama.cpp does not find it where a space is written";
    }
  }
  return "";
}

}  // namespace

std::string add_bpe_fields(GgufFields& fields, const SentencePieceModel& model, std::size_t rows) {
  if (std::string why = other_than_llama(model); !why.empty()) return why;
  GgufFields added = fields;
  added.text("tokenizer.ggml.model", "llama");
  if (std::string why = add_pieces(added, model, rows); !why.empty()) return why;
  added.count("tokenizer.ggml.unknown_token_id", static_cast<std::uint32_t>(model.unknown));
  fields = std::move(added);
  return "";
}

}  // namespace samba
