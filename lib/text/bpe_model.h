// Byte-pair encoding: a piece starts as its characters (or bytes); of all neighbouring pairs that have a merge, the one
// of the lowest rank is merged, the leftmost first, until none is left.
#pragma once

#include <array>
#include <optional>

#include "samba/text/token_model.h"
#include "samba/text/vocabulary.h"

namespace samba {

class BpeModel final : public TokenModel {
 public:
  struct Options {
    bool bytes = false;          // symbols are bytes, the vocabulary writes them in the byte alphabet
    bool byte_fallback = false;  // a character without a piece becomes the pieces <0x..> of its bytes
    bool fuse_unknown = false;   // neighbouring unknown characters give one unknown token
    bool ignore_merges = false;  // a piece that is in the vocabulary is its token, whatever the merges say
    std::optional<std::int32_t> unknown;
  };
  // `vocabulary` must outlive this.
  BpeModel(const Vocabulary& vocabulary, const Options& options);

  // The next merge in rank order. A pair that comes again takes the later rank.
  void add_merge(std::int32_t left, std::int32_t right, std::int32_t merged);

  std::string kind() const override { return options_.bytes ? "byte-level BPE" : "BPE"; }
  void encode(std::string_view piece, ModelScratch& scratch, std::vector<std::int32_t>& ids) const override;
  void encode_bytes(std::string_view bytes, ModelScratch& scratch, std::vector<std::int32_t>& ids) const override;

 private:
  struct Merge {
    std::uint64_t pair;
    std::uint32_t rank;
    std::int32_t merged;
  };
  const Merge* find(std::int32_t left, std::int32_t right) const;
  void grow();
  void start_bytes(std::string_view piece, std::vector<std::int32_t>& symbols) const;
  void start_characters(std::string_view piece, std::vector<std::int32_t>& symbols) const;
  bool byte_pieces(std::string_view bytes, std::vector<std::int32_t>& ids) const;
  std::optional<std::int32_t> whole_piece(std::string_view piece) const;
  void merge_short(ModelScratch& scratch) const;
  void merge_long(ModelScratch& scratch) const;

  const Vocabulary& vocabulary_;
  Options options_;
  std::array<std::int32_t, 256> byte_ids_{};                   // of the symbols, bytes mode; -1: none
  std::array<std::int32_t, 256> fallback_ids_{};               // of <0x..>; -1: none
  std::unordered_map<std::string, std::int32_t> byte_pieces_;  // bytes mode with ignore_merges: bytes -> id
  std::vector<Merge> merges_;                                  // open addressing, at most half full
  std::size_t mask_ = 0;
  std::size_t merge_count_ = 0;
};

}  // namespace samba
