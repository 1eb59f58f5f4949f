#include "samba/text/unigram_model.h"

#include <algorithm>
#include <cstdio>

#include "samba/core/error.h"
#include "samba/text/utf8.h"

namespace samba {

namespace {
constexpr double kUnknownPenalty = 10.0;  // below the lowest score, as SentencePiece has it
}

UnigramModel::UnigramModel(const Vocabulary& vocabulary, std::vector<double> scores,
                           std::optional<std::int32_t> unknown, bool byte_fallback)
    : vocabulary_(vocabulary), scores_(std::move(scores)), unknown_(unknown) {
  unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty;
  for (std::size_t id = 0; id < vocabulary.size(); ++id) {
    const auto token = static_cast<std::int32_t>(id);
    if (vocabulary.has(token)) trie_.insert(vocabulary.piece(token), token);
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    byte_ids_[byte] = byte_fallback ? vocabulary.id_of(name).value_or(-1) : -1;
  }
}

void UnigramModel::find_best(std::string_view piece, std::vector<ModelScratch::Best>& best) const {
  best.assign(piece.size() + 1, {0.0, -1, -1});
  const auto offer = [&](std::size_t begin, std::size_t end, double score, std::int32_t id) {
    ModelScratch::Best& target = best[end];
    const double sum = score + best[begin].score;
    if (target.begin < 0 || sum > target.score) target = {sum, static_cast<std::int64_t>(begin), id};
  };
  for (std::size_t begin = 0, length = 0; begin < piece.size(); begin += length) {
    length = utf8_length(static_cast<unsigned char>(piece[begin]));
    bool whole_character = false;
    std::int32_t node = ByteTrie::kRoot;
    for (std::size_t end = begin; end < piece.size();) {
      node = trie_.step(node, static_cast<unsigned char>(piece[end]));
      if (node == ByteTrie::kNone) break;
      ++end;
      const std::int32_t id = trie_.value(node);
      if (id == ByteTrie::kNone) continue;
      offer(begin, end, scores_[static_cast<std::size_t>(id)], id);
      whole_character |= end - begin == length;
    }
    if (whole_character) continue;
    if (!unknown_) {
      refuse_value("the tokenizer has no piece for the character '" + std::string(piece.substr(begin, length)) +
                   "' and no unknown token");
    }
    offer(begin, begin + length, unknown_score_, *unknown_);
  }
}

void UnigramModel::append(std::string_view part, std::vector<std::int32_t>& ids) const {
  const auto byte_id = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  if (const auto id = vocabulary_.id_of(part)) {
    ids.push_back(*id);
  } else if (std::all_of(part.begin(), part.end(), [&](char c) { return byte_id(c) >= 0; })) {
    std::transform(part.begin(), part.end(), std::back_inserter(ids), byte_id);
  } else if (unknown_) {
    ids.push_back(*unknown_);
  } else {
    refuse_value("the tokenizer has no piece for '" + std::string(part) + "' and no unknown token");
  }
}

void UnigramModel::encode(std::string_view piece, ModelScratch& scratch, std::vector<std::int32_t>& ids) const {
  find_best(piece, scratch.best);
  auto& parts = scratch.parts;
  parts.clear();
  bool in_unknown = false;  // neighbouring unknown characters are one
  for (auto end = static_cast<std::int64_t>(piece.size()); end > 0;) {
    const ModelScratch::Best& node = scratch.best[static_cast<std::size_t>(end)];
    const bool unknown = unknown_ && node.id == *unknown_;
    if (unknown && in_unknown) {
      parts.back().first = node.begin;
    } else {
      parts.emplace_back(node.begin, end);
    }
    in_unknown = unknown;
    end = node.begin;
  }
  for (std::size_t i = parts.size(); i-- > 0;) {
    const auto [begin, end] = parts[i];
    append(piece.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)), ids);
  }
}

void UnigramModel::encode_bytes(std::string_view bytes, ModelScratch& scratch, std::vector<std::int32_t>& ids) const {
  const auto byte_id = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  if (std::all_of(bytes.begin(), bytes.end(), [&](char c) { return byte_id(c) >= 0; })) {
    std::transform(bytes.begin(), bytes.end(), std::back_inserter(ids), byte_id);
    return;
  }
  std::string replaced;
  for (; !bytes.empty(); bytes.remove_prefix(next_utf8_part(bytes).length)) append_utf8(replaced, 0xFFFD);
  encode(replaced, scratch, ids);
}

}  // namespace samba
