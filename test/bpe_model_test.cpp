// Byte-pair encoding against its definition, and the memory of pieces seen before.
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "samba/text/bpe_model.h"
#include "samba/text/piece_cache.h"

namespace samba {
namespace {

using Ids = std::vector<std::int32_t>;

// Letters a to e and random merges of what there is, of which many share a piece or a pair of symbols.
struct Merges {
  Vocabulary vocabulary;
  std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t>> list;  // left, right, merged; by rank

  explicit Merges(unsigned seed, int count) {
    std::mt19937 draw(seed);
    std::int32_t next = 0;
    for (const char* letter : {"a", "b", "c", "d", "e"}) vocabulary.add(letter, next++);
    for (int i = 0; i < count; ++i) {
      const auto left = static_cast<std::int32_t>(draw() % static_cast<unsigned>(next));
      const auto right = static_cast<std::int32_t>(draw() % static_cast<unsigned>(next));
      const std::string piece = vocabulary.piece(left) + vocabulary.piece(right);
      if (piece.size() > 12) continue;
      if (vocabulary.add(piece, next)) ++next;
      list.emplace_back(left, right, *vocabulary.id_of(piece));
    }
  }
  BpeModel model() const {
    BpeModel::Options options;
    options.bytes = true;
    BpeModel made(vocabulary, options);
    for (const auto& [left, right, merged] : list) made.add_merge(left, right, merged);
    return made;
  }
  // The definition: the pair of the lowest rank, the leftmost first, until none is left. A pair given twice has the
  // later rank.
  Ids by_definition(const std::string& text) const {
    std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> ranks;
    for (std::size_t i = 0; i < list.size(); ++i) ranks[{std::get<0>(list[i]), std::get<1>(list[i])}] = i;
    Ids ids;
    for (const char letter : text) ids.push_back(letter - 'a');
    for (;;) {
      std::size_t best = list.size(), place = 0;
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto found = ranks.find({ids[i], ids[i + 1]});
        if (found == ranks.end() || found->second >= best) continue;
        best = found->second;
        place = i;
      }
      if (best == list.size()) return ids;
      ids[place] = std::get<2>(list[best]);
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
    }
  }
};

std::string random_text(std::mt19937& draw, std::size_t length) {
  std::string text;
  while (text.size() < length) text += static_cast<char>('a' + draw() % 5);
  return text;
}

TEST_CASE("pieces of every length are merged as the definition says, seen before or not") {
  for (const int count : {3, 40, 400, 4000}) {
    const Merges merges(static_cast<unsigned>(count), count);
    const BpeModel model = merges.model();
    ModelScratch scratch;
    std::mt19937 draw(1);
    for (std::size_t length = 1; length < 130; ++length) {
      const std::string text = random_text(draw, length);
      const Ids wanted = merges.by_definition(text);
      for (int time = 0; time < 2; ++time) {
        Ids ids{-7};
        model.encode(text, scratch, ids);
        CAPTURE(count, text, time);
        CHECK(ids.front() == -7);
        CHECK(Ids(ids.begin() + 1, ids.end()) == wanted);
      }
    }
  }
}

TEST_CASE("a memory of pieces gives what was put in, or nothing, however many there are") {
  PieceCache cache;
  std::mt19937 draw(2);
  std::map<std::string, Ids> all;
  for (int i = 0; i < 100000; ++i) {
    std::string piece = std::to_string(draw() % 1000000);
    piece.append(draw() % 40, static_cast<char>('a' + draw() % 26));
    Ids ids;
    for (std::size_t count = draw() % 20; ids.size() < count;) ids.push_back(static_cast<std::int32_t>(draw()));
    if (!all.emplace(piece, ids).second) continue;
    cache.insert(piece, PieceCache::hash_of(piece), ids);
  }
  std::size_t found = 0;
  for (const auto& [piece, ids] : all) {
    Ids got;
    if (!cache.find(piece, PieceCache::hash_of(piece), got)) continue;
    ++found;
    CHECK(got == ids);
  }
  CHECK(found > 8000);
  CHECK(found <= std::size_t{1} << 15);
  // What was just put in is there.
  const Ids ids{1, 2, 3};
  cache.insert("last", PieceCache::hash_of("last"), ids);
  Ids got;
  CHECK(cache.find("last", PieceCache::hash_of("last"), got));
  CHECK(got == ids);
}

TEST_CASE("texts that differ in one place have other hashes") {
  for (std::size_t length = 1; length <= PieceCache::kLongestPiece; ++length) {
    const std::string text(length, 'x');
    for (std::size_t place = 0; place < length; ++place) {
      std::string other = text;
      other[place] = 'y';
      CHECK(PieceCache::hash_of(other) != PieceCache::hash_of(text));
    }
  }
}

}  // namespace
}  // namespace samba
