#include "samba/text/bpe_model.h"

#include <algorithm>
#include <cstdio>

#include "samba/core/error.h"
#include "samba/text/byte_alphabet.h"
#include "samba/text/utf8.h"

namespace samba {

namespace {

constexpr std::uint64_t kNoPair = ~std::uint64_t{0};
constexpr std::uint32_t kNoRank = ~std::uint32_t{0};
constexpr std::size_t kFirstSlots = 1024;
constexpr std::size_t kShortPiece = 48;  // symbols; above it a heap is faster than scanning for the lowest rank

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}
std::size_t hash_of(std::uint64_t pair) { return static_cast<std::size_t>((pair * 0x9E3779B97F4A7C15U) >> 24); }

std::string byte_name(unsigned char byte) {
  char text[8];
  std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte));
  return text;
}

}  // namespace

BpeModel::BpeModel(const Vocabulary& vocabulary, const Options& options)
    : vocabulary_(vocabulary),
      options_(options),
      merges_(kFirstSlots, Merge{kNoPair, kNoRank, -1}),
      mask_(kFirstSlots - 1) {
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(static_cast<unsigned char>(byte));
    byte_ids_[byte] = vocabulary.id_of(to_byte_alphabet(std::string_view(&text, 1))).value_or(-1);
    fallback_ids_[byte] = vocabulary.id_of(byte_name(static_cast<unsigned char>(byte))).value_or(-1);
  }
  if (!options.bytes || !options.ignore_merges) return;
  for (std::size_t id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary.has(static_cast<std::int32_t>(id))) continue;
    if (const auto bytes = from_byte_alphabet(vocabulary.piece(static_cast<std::int32_t>(id)))) {
      byte_pieces_.emplace(*bytes, static_cast<std::int32_t>(id));
    }
  }
}

const BpeModel::Merge* BpeModel::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  for (std::size_t slot = hash_of(pair) & mask_;; slot = (slot + 1) & mask_) {
    if (merges_[slot].pair == pair) return &merges_[slot];
    if (merges_[slot].pair == kNoPair) return nullptr;
  }
}

void BpeModel::grow() {
  std::vector<Merge> old(merges_.size() * 2, Merge{kNoPair, kNoRank, -1});
  old.swap(merges_);
  mask_ = merges_.size() - 1;
  for (const Merge& merge : old) {
    if (merge.pair == kNoPair) continue;
    std::size_t slot = hash_of(merge.pair) & mask_;
    while (merges_[slot].pair != kNoPair) slot = (slot + 1) & mask_;
    merges_[slot] = merge;
  }
}

void BpeModel::add_merge(std::int32_t left, std::int32_t right, std::int32_t merged) {
  if ((merge_count_ + 1) * 2 > merges_.size()) grow();
  const std::uint64_t pair = pair_of(left, right);
  std::size_t slot = hash_of(pair) & mask_;
  while (merges_[slot].pair != kNoPair && merges_[slot].pair != pair) slot = (slot + 1) & mask_;
  merges_[slot] = {pair, static_cast<std::uint32_t>(merge_count_++), merged};
}

void BpeModel::start_bytes(std::string_view piece, std::vector<std::int32_t>& symbols) const {
  for (const char c : piece) {
    const std::int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    if (id >= 0) {
      symbols.push_back(id);
    } else if (options_.unknown) {
      if (!options_.fuse_unknown || symbols.empty() || symbols.back() != *options_.unknown) {
        symbols.push_back(*options_.unknown);
      }
    } else {
      refuse_value("the tokenizer has no piece for the byte " + byte_name(static_cast<unsigned char>(c)) +
                   " and no unknown token");
    }
  }
}

bool BpeModel::byte_pieces(std::string_view bytes, std::vector<std::int32_t>& ids) const {
  if (!options_.byte_fallback) return false;
  const auto id_of = [&](char c) { return fallback_ids_[static_cast<unsigned char>(c)]; };
  if (std::any_of(bytes.begin(), bytes.end(), [&](char c) { return id_of(c) < 0; })) return false;
  std::transform(bytes.begin(), bytes.end(), std::back_inserter(ids), id_of);
  return true;
}

void BpeModel::start_characters(std::string_view piece, std::vector<std::int32_t>& symbols) const {
  bool unknown = false;  // one is due, before the next character that has a piece
  for (std::size_t at = 0, length = 0; at < piece.size(); at += length) {
    length = utf8_length(static_cast<unsigned char>(piece[at]));
    const std::string_view character = piece.substr(at, length);
    if (const auto id = vocabulary_.id_of(character)) {
      if (std::exchange(unknown, false)) symbols.push_back(*options_.unknown);
      symbols.push_back(*id);
    } else if (!byte_pieces(character, symbols)) {
      if (!options_.unknown) {
        refuse_value("the tokenizer has no piece for the character '" + std::string(character) +
                     "' and no unknown token");
      }
      if (unknown && !options_.fuse_unknown) symbols.push_back(*options_.unknown);
      unknown = true;
    }
  }
  if (unknown) symbols.push_back(*options_.unknown);
}

// Scans for the lowest rank after every merge.
void BpeModel::merge_short(ModelScratch& scratch) const {
  std::vector<std::int32_t>& symbols = scratch.symbols;
  std::size_t count = symbols.size();
  scratch.ranks.resize(count);
  scratch.merged.resize(count);
  std::uint32_t* const ranks = scratch.ranks.data();
  std::int32_t* const merged = scratch.merged.data();
  const auto rate = [&](std::size_t i) {
    const Merge* const merge = i + 1 < count ? find(symbols[i], symbols[i + 1]) : nullptr;
    ranks[i] = merge != nullptr ? merge->rank : kNoRank;
    merged[i] = merge != nullptr ? merge->merged : -1;
  };
  for (std::size_t i = 0; i < count; ++i) rate(i);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoRank) break;
    symbols[best] = merged[best];
    --count;
    for (std::size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      ranks[i] = ranks[i + 1];
      merged[i] = merged[i + 1];
    }
    rate(best);
    if (best > 0) rate(best - 1);
  }
  symbols.resize(count);
}

// A heap of candidates over a linked list of symbols: n log n, for texts that no pre-tokenizer cuts.
void BpeModel::merge_long(ModelScratch& scratch) const {
  using Candidate = ModelScratch::Candidate;
  std::vector<std::int32_t>& symbols = scratch.symbols;
  std::vector<std::int32_t>& previous = scratch.previous;
  std::vector<std::int32_t>& next = scratch.next;
  std::vector<Candidate>& heap = scratch.heap;
  const auto count = static_cast<std::int32_t>(symbols.size());
  const auto at = [](std::int32_t i) { return static_cast<std::size_t>(i); };
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  previous.resize(symbols.size());
  next.resize(symbols.size());
  heap.clear();
  for (std::int32_t i = 0; i < count; ++i) {
    previous[at(i)] = i - 1;
    next[at(i)] = i + 1 < count ? i + 1 : -1;
    if (i + 1 == count) break;
    if (const Merge* const merge = find(symbols[at(i)], symbols[at(i + 1)])) {
      heap.push_back({merge->rank, i, merge->merged});
    }
  }
  std::make_heap(heap.begin(), heap.end(), later);
  const auto propose = [&](std::int32_t i) {
    if (i < 0 || next[at(i)] < 0) return;
    if (const Merge* const merge = find(symbols[at(i)], symbols[at(next[at(i)])])) {
      heap.push_back({merge->rank, i, merge->merged});
      std::push_heap(heap.begin(), heap.end(), later);
    }
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate top = heap.back();
    heap.pop_back();
    const std::int32_t right = symbols[at(top.position)] >= 0 ? next[at(top.position)] : -1;
    if (right < 0) continue;
    const Merge* const merge = find(symbols[at(top.position)], symbols[at(right)]);
    if (merge == nullptr || merge->rank != top.rank) continue;  // its symbols changed since
    symbols[at(top.position)] = top.merged;
    symbols[at(right)] = -1;
    next[at(top.position)] = next[at(right)];
    if (next[at(right)] >= 0) previous[at(next[at(right)])] = top.position;
    propose(previous[at(top.position)]);
    propose(top.position);
  }
  std::erase(symbols, -1);
}

std::optional<std::int32_t> BpeModel::whole_piece(std::string_view piece) const {
  if (!options_.bytes) return vocabulary_.id_of(piece);
  const auto found = byte_pieces_.find(std::string(piece));
  if (found == byte_pieces_.end()) return std::nullopt;
  return found->second;
}

void BpeModel::encode(std::string_view piece, ModelScratch& scratch, std::vector<std::int32_t>& ids) const {
  const bool cached = piece.size() <= PieceCache::kLongestPiece;
  if (cached && scratch.cache.find(piece, ids)) return;
  if (options_.ignore_merges) {
    if (const auto id = whole_piece(piece)) {
      if (cached) scratch.cache.insert(piece, {&*id, 1});
      return ids.push_back(*id);
    }
  }
  scratch.symbols.clear();
  if (options_.bytes) {
    start_bytes(piece, scratch.symbols);
  } else {
    start_characters(piece, scratch.symbols);
  }
  if (scratch.symbols.size() <= kShortPiece) {
    merge_short(scratch);
  } else {
    merge_long(scratch);
  }
  if (cached && !scratch.symbols.empty()) scratch.cache.insert(piece, scratch.symbols);
  ids.insert(ids.end(), scratch.symbols.begin(), scratch.symbols.end());
}

void BpeModel::encode_bytes(std::string_view bytes, ModelScratch& scratch, std::vector<std::int32_t>& ids) const {
  if (options_.bytes) return encode(bytes, scratch, ids);
  if (byte_pieces(bytes, ids)) return;
  std::string replaced;
  for (; !bytes.empty(); bytes.remove_prefix(next_utf8_part(bytes).length)) append_utf8(replaced, 0xFFFD);
  encode(replaced, scratch, ids);
}

}  // namespace samba
