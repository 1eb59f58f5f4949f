// Regular expressions of tokenizer files, which are written for Oniguruma, run by PCRE2 with Unicode classes.
//
// The syntax is checked before: what both libraries read alike goes through, \s \S \w \W are spelt as the Unicode
// properties that Oniguruma means, and everything else (anchors, back references, set operations, ...) is refused.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace samba {

class Regex {
 public:
  // What a search needs beside the pattern; one per thread, for any number of patterns.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Regex;
    struct Data;
    std::unique_ptr<Data> data_;
  };

  // `where` names the field in refusals. A pattern that can match nothing is refused: it would split everywhere.
  Regex(std::string_view pattern, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // The first match at or behind `from` of `text`, which is well-formed UTF-8. Error(value) when the pattern needs more
  // steps than the library's limit.
  bool find(std::string_view text, std::size_t from, Scratch& scratch, std::size_t& begin, std::size_t& end) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace samba
