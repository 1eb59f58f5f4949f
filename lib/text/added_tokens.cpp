#include "samba/text/added_tokens.h"

#include <algorithm>

#include "samba/text/normalizer.h"
#include "samba/text/utf8.h"

namespace samba {

namespace {

// The character that ends at `end`, or U+FFFD when these bytes are none; `begin` receives where it starts.
char32_t character_before(std::string_view text, std::size_t end, std::size_t& begin) {
  begin = end;
  while (begin > 0 && end - begin < 4) {
    --begin;
    if ((static_cast<unsigned char>(text[begin]) & 0xC0) != 0x80) break;
  }
  const std::string_view part = text.substr(begin, end - begin);
  const Utf8Part first = next_utf8_part(part);
  if (!first.valid || !first.whole || first.length != part.size()) return 0xFFFD;
  std::size_t length = 0;
  return first_character(part, length);
}

char32_t character_at(std::string_view text, std::size_t at, std::size_t& length) {
  const Utf8Part part = next_utf8_part(text.substr(at));
  length = part.length;
  return part.valid && part.whole ? first_character(text.substr(at), length) : 0xFFFD;
}

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  std::size_t ignored = 0;
  const bool before = begin > 0 && is_word_character(character_before(text, begin, ignored));
  const bool behind = end < text.size() && is_word_character(character_at(text, end, ignored));
  return !before && !behind;
}

std::size_t skip_white_space_back(std::string_view text, std::size_t end) {
  std::size_t begin = 0;
  while (end > 0 && is_white_space(character_before(text, end, begin))) end = begin;
  return end;
}

std::size_t skip_white_space(std::string_view text, std::size_t at) {
  std::size_t length = 0;
  while (at < text.size() && is_white_space(character_at(text, at, length))) at += length;
  return at;
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token, std::string_view written) {
  if (written.empty()) return;
  trie_.insert(written, static_cast<std::int32_t>(tokens_.size()));
  tokens_.push_back(token);
}

// The end of the longest token at `at`, or `at`.
std::size_t AddedTokenFinder::match(std::string_view text, std::size_t at, std::int32_t& index) const {
  std::size_t end = at;
  std::int32_t node = ByteTrie::kRoot;
  for (std::size_t i = at; i < text.size(); ++i) {
    node = trie_.step(node, static_cast<unsigned char>(text[i]));
    if (node == ByteTrie::kNone) break;
    if (trie_.value(node) != ByteTrie::kNone) {
      index = trie_.value(node);
      end = i + 1;
    }
  }
  return end;
}

void AddedTokenFinder::split(std::string_view text, bool special, std::vector<Stretch>& stretches) const {
  stretches.clear();
  std::size_t done = 0;
  std::size_t at = 0;
  while (!tokens_.empty() && at < text.size()) {
    std::int32_t index = 0;
    std::size_t end = match(text, at, index);
    if (end == at) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
    std::size_t begin = at;
    at = end;
    if (token.special && !special) continue;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(skip_white_space_back(text, begin), done);
    if (token.rstrip) end = skip_white_space(text, end);
    if (done < begin) stretches.push_back({-1, done, begin});
    stretches.push_back({token.id, begin, end});
    done = end;
  }
  if (done < text.size()) stretches.push_back({-1, done, text.size()});
}

}  // namespace samba
