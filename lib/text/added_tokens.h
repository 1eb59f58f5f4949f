// Added and special tokens of a tokenizer: found in the text before everything else, as whole tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "samba/text/byte_trie.h"

namespace samba {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  // no letter or digit next to it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and behind it
  bool normalized = false;   // looked for in the normalized text
  bool special = false;      // leaves no text when special tokens are skipped
};

class AddedTokenFinder {
 public:
  // A stretch of the text: token `id`, or text (`id` -1).
  struct Stretch {
    std::int32_t id;
    std::size_t begin;
    std::size_t end;
  };

  // `written` is how the token is spelt in the text that is searched.
  void add(const AddedToken& token, std::string_view written);
  bool empty() const { return tokens_.empty(); }

  // The stretches of `text` in order: at each place the longest token, tokens do not overlap. Special tokens are left
  // as text where `special` is false. Bytes that are no UTF-8 may be among them.
  void split(std::string_view text, bool special, std::vector<Stretch>& stretches) const;

 private:
  std::size_t match(std::string_view text, std::size_t at, std::int32_t& index) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;
};

}  // namespace samba
