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
  static constexpr std::uint32_t kNoRank = 0x7FFFFFFF;
  struct Merge {
    std::int32_t left;
    std::int32_t right;
    std::int32_t merged;
  };
  // Ranks of pairs, eight in one cache line, filled from the front. A pair is told by a tag of 32 bits alone: what is
  // found is to be checked against the merge of that rank before it is taken.
  struct alignas(64) Bucket {
    static constexpr std::uint32_t kSpilled = 0x80000000;  // in the first rank: more of them are in the next bucket
    std::array<std::uint32_t, 8> tags;
    std::array<std::uint32_t, 8> ranks;
  };
  struct Place {
    std::size_t bucket;
    std::uint32_t tag;
  };

  Place place_of(std::int32_t left, std::int32_t right) const;
  // kNoRank, or the rank that this pair has if any.
  std::uint32_t find(std::int32_t left, std::int32_t right) const;
  bool is_pair(std::uint32_t rank, std::int32_t left, std::int32_t right) const {
    return merges_[rank].left == left && merges_[rank].right == right;
  }
  bool insert(std::uint32_t rank);
  void rebuild(std::size_t buckets);
  void start_bytes(std::string_view piece, std::vector<std::int32_t>& symbols) const;
  void start_characters(std::string_view piece, std::vector<std::int32_t>& symbols) const;
  bool byte_pieces(std::string_view bytes, std::vector<std::int32_t>& ids) const;
  std::optional<std::int32_t> whole_piece(std::string_view piece) const;
  template <class Rate>
  std::size_t merge_short(std::int32_t* symbols, std::size_t count, Rate&& first_rank) const;
  bool encode_short_bytes(std::string_view piece, std::vector<std::int32_t>& ids) const;
  void merge_long(ModelScratch& scratch) const;
  void encode_new(std::string_view piece, ModelScratch& scratch, std::vector<std::int32_t>& ids) const;

  const Vocabulary& vocabulary_;
  Options options_;
  std::array<std::int32_t, 256> byte_ids_{};                   // of the symbols, bytes mode; -1: none
  std::array<std::int32_t, 256> fallback_ids_{};               // of <0x..>; -1: none
  std::unordered_map<std::string, std::int32_t> byte_pieces_;  // bytes mode with ignore_merges: bytes -> id
  std::vector<Merge> merges_;                                  // by rank
  std::vector<Bucket> buckets_;                                // a power of two
  std::uint64_t factor_ = 0x9E3779B97F4A7C15U;                 // of the hash, odd
  std::vector<std::uint32_t> byte_ranks_;                      // bytes mode: of two bytes
  std::vector<std::int16_t> bytes_of_;                         // bytes mode: id -> byte, -1: none
};

}  // namespace samba
