#include "samba/text/bpe_model.h"

#include <algorithm>
#include <cstdio>

#include "samba/core/error.h"
#include "samba/text/byte_alphabet.h"
#include "samba/text/utf8.h"

namespace samba {

namespace {

constexpr std::size_t kFirstBuckets = 64;
constexpr std::size_t kBytes = 256;
constexpr std::size_t kShortPiece = 48;  // symbols; above it a heap is faster than scanning for the lowest rank
constexpr int kMostFactors = 64;

std::string byte_name(unsigned char byte) {
  char text[8];
  std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte));
  return text;
}

}  // namespace

BpeModel::BpeModel(const Vocabulary& vocabulary, const Options& options) : vocabulary_(vocabulary), options_(options) {
  rebuild(kFirstBuckets);
  for (std::size_t byte = 0; byte < kBytes; ++byte) {
    const char text = static_cast<char>(static_cast<unsigned char>(byte));
    byte_ids_[byte] = vocabulary.id_of(to_byte_alphabet(std::string_view(&text, 1))).value_or(-1);
    fallback_ids_[byte] = vocabulary.id_of(byte_name(static_cast<unsigned char>(byte))).value_or(-1);
  }
  if (options.bytes) {
    byte_ranks_.assign(kBytes * kBytes, kNoRank);
    bytes_of_.assign(vocabulary.size(), -1);
    for (std::size_t byte = 0; byte < kBytes; ++byte) {
      if (byte_ids_[byte] >= 0) bytes_of_[static_cast<std::size_t>(byte_ids_[byte])] = static_cast<std::int16_t>(byte);
    }
  }
  if (!options.bytes || !options.ignore_merges) return;
  for (std::size_t id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary.has(static_cast<std::int32_t>(id))) continue;
    if (const auto bytes = from_byte_alphabet(vocabulary.piece(static_cast<std::int32_t>(id)))) {
      byte_pieces_.emplace(*bytes, static_cast<std::int32_t>(id));
    }
  }
}

BpeModel::Place BpeModel::place_of(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair =
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  const std::uint64_t hash = pair * factor_;
  return {static_cast<std::size_t>(hash >> 40) & (buckets_.size() - 1), static_cast<std::uint32_t>(hash ^ hash >> 32)};
}

// Without branches that depend on what is found: whether two symbols have a merge cannot be predicted.
std::uint32_t BpeModel::find(std::int32_t left, std::int32_t right) const {
  for (Place place = place_of(left, right);; place.bucket = (place.bucket + 1) & (buckets_.size() - 1)) {
    const Bucket& bucket = buckets_[place.bucket];
    std::uint32_t rank = ~0U;
    for (std::size_t i = 0; i < bucket.tags.size(); ++i) {
      rank &= bucket.ranks[i] | (bucket.tags[i] == place.tag ? 0U : ~0U);
    }
    rank &= ~Bucket::kSpilled;
    const bool goes_on = (rank == kNoRank) & (bucket.ranks[0] >= Bucket::kSpilled);
    if (!goes_on) [[likely]]
      return rank;
  }
}

// False when another pair has the same tag in the same place.
bool BpeModel::insert(std::uint32_t rank) {
  const Merge& merge = merges_[rank];
  for (Place place = place_of(merge.left, merge.right);; place.bucket = (place.bucket + 1) & (buckets_.size() - 1)) {
    Bucket& bucket = buckets_[place.bucket];
    for (std::size_t i = 0; i < bucket.tags.size(); ++i) {
      const std::uint32_t there = bucket.ranks[i] & ~Bucket::kSpilled;
      if (there != kNoRank && bucket.tags[i] != place.tag) continue;
      if (there != kNoRank && !is_pair(there, merge.left, merge.right)) return false;
      bucket.tags[i] = place.tag;
      bucket.ranks[i] = rank | (bucket.ranks[i] & Bucket::kSpilled);
      return true;
    }
    bucket.ranks[0] |= Bucket::kSpilled;
  }
}

// All merges anew, with the next factor whenever two pairs cannot be told apart.
void BpeModel::rebuild(std::size_t buckets) {
  Bucket empty{};
  empty.ranks.fill(kNoRank);
  for (int attempt = 0; attempt < kMostFactors; ++attempt) {
    buckets_.assign(buckets, empty);
    std::uint32_t rank = 0;
    while (rank < merges_.size() && insert(rank)) ++rank;
    if (rank == merges_.size()) return;
    factor_ = factor_ * 0xD6E8FEB86659FD93U | 1U;
  }
  throw Error(ErrorKind::internal, "the merges of a tokenizer have no hash that tells them apart");
}

void BpeModel::add_merge(std::int32_t left, std::int32_t right, std::int32_t merged) {
  const auto rank = static_cast<std::uint32_t>(merges_.size());
  merges_.push_back({left, right, merged});
  if (merges_.size() * 2 > buckets_.size() * Bucket().tags.size()) {
    rebuild(buckets_.size() * 2);
  } else if (!insert(rank)) {
    rebuild(buckets_.size());
  }
  if (!options_.bytes) return;
  const std::int16_t first = bytes_of_[static_cast<std::size_t>(left)];
  const std::int16_t second = bytes_of_[static_cast<std::size_t>(right)];
  if (first < 0 || second < 0) return;
  byte_ranks_[static_cast<std::size_t>(first) * kBytes + static_cast<std::size_t>(second)] = rank;
}

void BpeModel::start_bytes(std::string_view piece, std::vector<std::int32_t>& symbols) const {
  symbols.reserve(piece.size());
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

// Scans for the lowest rank after every merge. A key is the rank of the pair (i, symbol behind i) above i itself, so
// that the least key is the leftmost pair of the lowest rank; symbols stay where they are, in a list. `first_rank(i)`:
// of the symbols i and i + 1 at the beginning. Returns the number of symbols that are left.
template <class Rate>
std::size_t BpeModel::merge_short(std::int32_t* symbols, std::size_t count, Rate&& first_rank) const {
  constexpr std::uint64_t kNoKey = ~std::uint64_t{0};
  if (count < 2) return count;
  std::array<std::uint64_t, kShortPiece + 1> keys;
  std::array<std::uint8_t, kShortPiece + 1> next;
  std::array<std::uint8_t, kShortPiece + 1> previous;
  const auto key_of = [](std::uint32_t rank, std::size_t i) { return static_cast<std::uint64_t>(rank) << 8 | i; };
  for (std::size_t i = 0; i < count; ++i) {
    if (i + 1 < count) keys[i] = key_of(first_rank(i), i);
    next[i] = static_cast<std::uint8_t>(i + 1);
    previous[i + 1] = static_cast<std::uint8_t>(i);
  }
  keys[count - 1] = kNoKey;
  const std::size_t pairs = count - 1 + (count - 1) % 2;  // two chains of minima
  for (;;) {
    std::uint64_t even = keys[0];
    std::uint64_t odd = keys[1];
    for (std::size_t i = 2; i < pairs; i += 2) {
      even = std::min(even, keys[i]);
      odd = std::min(odd, keys[i + 1]);
    }
    const std::uint64_t best = std::min(even, odd);
    if (best >> 8 >= kNoRank) break;
    const std::size_t i = best & 0xFF;
    const std::size_t gone = next[i];
    const Merge& merge = merges_[best >> 8];
    if (merge.left != symbols[i] || merge.right != symbols[gone]) {  // another pair with the same tag
      keys[i] = kNoKey;
      continue;
    }
    const std::size_t behind = next[gone];
    symbols[i] = merge.merged;
    keys[gone] = kNoKey;
    next[i] = static_cast<std::uint8_t>(behind);
    previous[behind] = static_cast<std::uint8_t>(i);
    keys[i] = behind < count ? key_of(find(merge.merged, symbols[behind]), i) : kNoKey;
    if (i > 0) keys[previous[i]] = key_of(find(symbols[previous[i]], merge.merged), previous[i]);
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < count; i = next[i]) symbols[kept++] = symbols[i];
  return kept;
}

// False when one of the bytes has no piece.
bool BpeModel::encode_short_bytes(std::string_view piece, std::vector<std::int32_t>& ids) const {
  std::array<std::int32_t, kShortPiece> symbols;
  const auto byte = [&](std::size_t i) { return static_cast<std::size_t>(static_cast<unsigned char>(piece[i])); };
  std::int32_t all = 0;
  for (std::size_t i = 0; i < piece.size(); ++i) all |= symbols[i] = byte_ids_[byte(i)];
  if (all < 0) return false;
  const std::size_t count = merge_short(symbols.data(), piece.size(),
                                        [&](std::size_t i) { return byte_ranks_[byte(i) * kBytes + byte(i + 1)]; });
  ids.insert(ids.end(), symbols.begin(), symbols.begin() + static_cast<std::ptrdiff_t>(count));
  return true;
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
    if (const std::uint32_t rank = find(symbols[at(i)], symbols[at(i + 1)]); rank != kNoRank) {
      heap.push_back({rank, i});
    }
  }
  std::make_heap(heap.begin(), heap.end(), later);
  const auto propose = [&](std::int32_t i) {
    if (i < 0 || next[at(i)] < 0) return;
    const std::uint32_t rank = find(symbols[at(i)], symbols[at(next[at(i)])]);
    if (rank == kNoRank) return;
    heap.push_back({rank, i});
    std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate top = heap.back();
    heap.pop_back();
    const std::int32_t right = symbols[at(top.position)] >= 0 ? next[at(top.position)] : -1;
    if (right < 0) continue;
    // Its symbols changed since, or another pair has the same tag.
    if (!is_pair(top.rank, symbols[at(top.position)], symbols[at(right)])) continue;
    symbols[at(top.position)] = merges_[top.rank].merged;
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
  if (piece.size() > PieceCache::kLongestPiece) return encode_new(piece, scratch, ids);
  const std::uint64_t hash = PieceCache::hash_of(piece);
  if (scratch.cache.find(piece, hash, ids)) return;
  const std::size_t before = ids.size();
  encode_new(piece, scratch, ids);
  scratch.cache.insert(piece, hash, std::span(ids).subspan(before));
}

// A piece that was not seen before.
void BpeModel::encode_new(std::string_view piece, ModelScratch& scratch, std::vector<std::int32_t>& ids) const {
  if (options_.ignore_merges) {
    if (const auto id = whole_piece(piece)) return ids.push_back(*id);
  }
  if (options_.bytes && piece.size() <= kShortPiece && encode_short_bytes(piece, ids)) return;
  std::vector<std::int32_t>& symbols = scratch.symbols;
  symbols.clear();
  if (options_.bytes) {
    start_bytes(piece, symbols);
  } else {
    start_characters(piece, symbols);
  }
  if (symbols.size() <= kShortPiece) {
    symbols.resize(
        merge_short(symbols.data(), symbols.size(), [&](std::size_t i) { return find(symbols[i], symbols[i + 1]); }));
  } else {
    merge_long(scratch);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void BpeModel::encode_bytes(std::string_view bytes, ModelScratch& scratch, std::vector<std::int32_t>& ids) const {
  if (options_.bytes) return encode(bytes, scratch, ids);
  if (byte_pieces(bytes, ids)) return;
  std::string replaced;
  for (; !bytes.empty(); bytes.remove_prefix(next_utf8_part(bytes).length)) append_utf8(replaced, 0xFFFD);
  encode(replaced, scratch, ids);
}

}  // namespace samba
