// The normalizer of a tokenizer.json: what happens to text before it is split.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "samba/text/regex.h"

namespace samba {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// `text` (well-formed UTF-8) in a Unicode normal form, by ICU; false when it is in that form already.
bool normalize_unicode(std::string_view text, NormalForm form, std::string& normalized);

class Normalizer {
 public:
  struct Form {
    NormalForm form;
  };
  struct Prepend {
    std::string text;
  };
  struct Replace {
    std::optional<Regex> pattern;  // none: `text` itself
    std::string text;
    std::string content;
  };
  struct Strip {
    bool left;
    bool right;
  };
  using Step = std::variant<Form, Prepend, Replace, Strip>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }

  // `text`, normalized: itself or a view of `buffers`. `continues`: text of the same stretch came before, nothing is
  // prepended.
  std::string_view apply(std::string_view text, bool continues, Regex::Scratch& scratch,
                         std::string (&buffers)[2]) const;

 private:
  std::vector<Step> steps_;
};

// White space as Unicode has it.
bool is_white_space(char32_t character);
// Letters, marks, digits, connectors, joiners: what a "word" is for added tokens.
bool is_word_character(char32_t character);

}  // namespace samba
