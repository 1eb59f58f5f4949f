// The pre-tokenizer of a tokenizer.json: cuts normalized text into pieces that no token crosses.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "samba/text/regex.h"

namespace samba {

// A stretch of text on its way through the stages.
struct TextPiece {
  std::string_view text;
  bool at_start;   // it begins the whole text
  bool continues;  // it goes on where bytes that are no UTF-8 interrupted: nothing is put before it
};

class PreTokenizer {
 public:
  // What becomes of the matches of a pattern.
  enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };
  struct Split {
    Regex pattern;
    Behavior behavior;
    bool invert;  // the pattern describes the pieces, not what is between them
  };
  // A space before every piece that begins with none.
  struct PrefixSpace {};
  enum class Prepend { always, first, never };
  // Spaces become `replacement`; it is put before the text, and begins the pieces.
  struct Metaspace {
    std::string replacement;
    Prepend prepend;
    bool split;
    Regex pattern;  // `replacement` itself
  };
  using Stage = std::variant<Split, PrefixSpace, Metaspace>;

  class Sink {
   public:
    virtual void piece(std::string_view text) = 0;

   protected:
    ~Sink() = default;
  };
  struct Scratch {
    struct Span {
      std::size_t begin;
      std::size_t end;
      bool match;
    };
    struct StageBuffers {
      std::string text;
      std::vector<Span> spans;
    };
    std::vector<StageBuffers> stages;
  };

  void add(Stage stage) { stages_.push_back(std::move(stage)); }

  // Hands the pieces of `text` to `sink`, in order; none is empty.
  void run(const TextPiece& text, Regex::Scratch& regex, Scratch& scratch, Sink& sink) const;

 private:
  struct Run;
  std::vector<Stage> stages_;
};

}  // namespace samba
