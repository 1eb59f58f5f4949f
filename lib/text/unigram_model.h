// Unigram: of all ways to cut a piece into vocabulary pieces, the one with the largest sum of scores.
#pragma once

#include <array>
#include <optional>

#include "samba/text/byte_trie.h"
#include "samba/text/token_model.h"
#include "samba/text/vocabulary.h"

namespace samba {

class UnigramModel final : public TokenModel {
 public:
  // `scores[id]` of every piece of `vocabulary`, which must outlive this.
  UnigramModel(const Vocabulary& vocabulary, std::vector<double> scores, std::optional<std::int32_t> unknown,
               bool byte_fallback);

  std::string kind() const override { return "Unigram"; }
  void encode(std::string_view piece, ModelScratch& scratch, std::vector<std::int32_t>& ids) const override;
  void encode_bytes(std::string_view bytes, ModelScratch& scratch, std::vector<std::int32_t>& ids) const override;

 private:
  void find_best(std::string_view piece, std::vector<ModelScratch::Best>& best) const;
  void append(std::string_view part, std::vector<std::int32_t>& ids) const;

  const Vocabulary& vocabulary_;
  std::vector<double> scores_;
  double unknown_score_ = 0.0;
  std::optional<std::int32_t> unknown_;
  std::array<std::int32_t, 256> byte_ids_{};  // of <0x..>; -1: none, or no byte fallback
  ByteTrie trie_;
};

}  // namespace samba
