// What turns one piece of text into tokens: BPE or Unigram.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "samba/text/piece_cache.h"

namespace samba {

// Working memory of a model, kept between pieces so that none is allocated for a token. One per thread.
struct ModelScratch {
  // BPE: the symbols of the piece in hand.
  std::vector<std::int32_t> symbols;
  std::vector<std::int32_t> previous, next;
  struct Candidate {
    std::uint32_t rank;
    std::int32_t position;
  };
  std::vector<Candidate> heap;
  PieceCache cache;
  // Unigram: the best way to each position.
  struct Best {
    double score;
    std::int64_t begin;  // -1: not reached
    std::int32_t id;
  };
  std::vector<Best> best;
  std::vector<std::pair<std::int64_t, std::int64_t>> parts;
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  virtual std::string kind() const = 0;
  // Appends the tokens of a piece of well-formed UTF-8. Error(value): a character without a token where the tokenizer
  // has no unknown token.
  virtual void encode(std::string_view piece, ModelScratch& scratch, std::vector<std::int32_t>& ids) const = 0;
  // Appends the tokens of bytes that are no UTF-8.
  virtual void encode_bytes(std::string_view bytes, ModelScratch& scratch, std::vector<std::int32_t>& ids) const = 0;
};

}  // namespace samba
