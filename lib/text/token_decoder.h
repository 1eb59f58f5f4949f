// The decoder of a tokenizer.json: the bytes that a token adds to the text.
//
// Every step works on one token by itself, but for what is taken away at the start of the text; so a text can be
// decoded token by token.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "samba/text/tokenizer.h"

namespace samba {

class TokenDecoder {
 public:
  struct ByteLevel {};     // characters of the byte alphabet; other pieces are their own bytes
  struct ByteFallback {};  // <0x..> is that byte
  struct Replace {
    std::string text;
    std::string content;
  };
  struct Metaspace {
    std::string replacement;
    bool drops_first;  // the first token loses it, others get spaces
  };
  // From every token: at most `start` of `content` at its begin, `stop` at its end.
  struct StripToken {
    std::string content;
    int start;
    int stop;
  };
  using Step = std::variant<ByteLevel, ByteFallback, Replace, Metaspace, StripToken>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  // From the whole text: at most `count` of the character `content` at its begin.
  void strip_start(std::string content, int count);

  void decode(std::string_view piece, DecodeState& state, std::string& bytes) const;

 private:
  void strip(std::string_view text, DecodeState& state, std::string& bytes) const;

  std::vector<Step> steps_;
  std::string stripped_;
  int strip_count_ = 0;
};

}  // namespace samba
