#include "samba/text/pre_tokenizer.h"

namespace samba {

namespace {

using Span = PreTokenizer::Scratch::Span;
using Behavior = PreTokenizer::Behavior;

// Matches of the pattern and what is between them, in order; they cover `text`.
void find_spans(const Regex& pattern, bool invert, std::string_view text, Regex::Scratch& regex,
                std::vector<Span>& spans) {
  spans.clear();
  std::size_t done = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  while (done < text.size() && pattern.find(text, done, regex, begin, end)) {
    if (begin > done) spans.push_back({done, begin, invert});
    spans.push_back({begin, end, !invert});
    done = end;
  }
  if (done < text.size()) spans.push_back({done, text.size(), invert});
}

// Joins matches with their neighbours; afterwards every span is a piece.
void merge_with_previous(std::vector<Span>& spans) {
  std::size_t kept = 0;
  bool previous_match = false;
  for (const Span span : spans) {
    if (span.match && !previous_match && kept > 0) {
      spans[kept - 1].end = span.end;
    } else {
      spans[kept++] = span;
    }
    previous_match = span.match;
  }
  spans.resize(kept);
}

void merge_with_next(std::vector<Span>& spans) {
  std::size_t kept = spans.size();
  bool next_match = false;
  for (std::size_t i = spans.size(); i-- > 0;) {
    const Span span = spans[i];
    if (span.match && !next_match && kept < spans.size()) {
      spans[kept].begin = span.begin;
    } else {
      spans[--kept] = span;
    }
    next_match = span.match;
  }
  spans.erase(spans.begin(), spans.begin() + static_cast<std::ptrdiff_t>(kept));
}

void merge_runs(std::vector<Span>& spans) {
  std::size_t kept = 0;
  bool previous_match = false;
  for (const Span span : spans) {
    if (span.match == previous_match && kept > 0) {
      spans[kept - 1].end = span.end;
    } else {
      spans[kept++] = span;
    }
    previous_match = span.match;
  }
  spans.resize(kept);
}

}  // namespace

// One text on its way: each stage hands its pieces to the next one as it finds them.
struct PreTokenizer::Run {
  const std::vector<Stage>& stages;
  Regex::Scratch& regex;
  Scratch& scratch;
  Sink& sink;

  void at(std::size_t stage, const TextPiece& piece) {
    if (piece.text.empty()) return;
    if (stage == stages.size()) return sink.piece(piece.text);
    const Stage& now = stages[stage];
    if (const auto* split = std::get_if<Split>(&now)) {
      run_split(stage, *split, piece);
    } else if (const auto* metaspace = std::get_if<Metaspace>(&now)) {
      run_metaspace(stage, *metaspace, piece);
    } else {
      run_prefix_space(stage, piece);
    }
  }

  void part(std::size_t stage, const TextPiece& piece, std::size_t begin, std::size_t end) {
    at(stage + 1, {piece.text.substr(begin, end - begin), piece.at_start && begin == 0, piece.continues && begin == 0});
  }

  void run_split(std::size_t stage, const Split& split, const TextPiece& piece) {
    if (split.behavior == Behavior::isolated) {  // the usual one needs no list
      std::size_t done = 0;
      std::size_t begin = 0;
      std::size_t end = 0;
      while (done < piece.text.size() && split.pattern.find(piece.text, done, regex, begin, end)) {
        part(stage, piece, done, begin);
        part(stage, piece, begin, end);
        done = end;
      }
      return part(stage, piece, done, piece.text.size());
    }
    std::vector<Span>& spans = scratch.stages[stage].spans;
    find_spans(split.pattern, split.invert, piece.text, regex, spans);
    const bool drop_matches = split.behavior == Behavior::removed;
    if (split.behavior == Behavior::merged_with_previous) merge_with_previous(spans);
    if (split.behavior == Behavior::merged_with_next) merge_with_next(spans);
    if (split.behavior == Behavior::contiguous) merge_runs(spans);
    for (const Span& span : spans) {
      if (!drop_matches || !span.match) part(stage, piece, span.begin, span.end);
    }
  }

  void run_prefix_space(std::size_t stage, const TextPiece& piece) {
    if (piece.continues || piece.text.starts_with(' ')) return at(stage + 1, piece);
    std::string& text = scratch.stages[stage].text;
    text.assign(1, ' ').append(piece.text);
    at(stage + 1, {text, piece.at_start, false});
  }

  void run_metaspace(std::size_t stage, const Metaspace& metaspace, const TextPiece& piece) {
    std::string& text = scratch.stages[stage].text;
    text.clear();
    const bool wanted = metaspace.prepend == Prepend::always || (metaspace.prepend == Prepend::first && piece.at_start);
    const bool begun = piece.text.starts_with(' ') || piece.text.starts_with(metaspace.replacement);
    if (wanted && !piece.continues && !begun) text = metaspace.replacement;
    for (const char c : piece.text) {
      if (c == ' ') {
        text += metaspace.replacement;
      } else {
        text += c;
      }
    }
    const TextPiece replaced{text, piece.at_start, piece.continues};
    if (!metaspace.split) return at(stage + 1, replaced);
    std::vector<Span>& spans = scratch.stages[stage].spans;
    find_spans(metaspace.pattern, false, text, regex, spans);
    merge_with_next(spans);
    for (const Span& span : spans) part(stage, replaced, span.begin, span.end);
  }
};

void PreTokenizer::run(const TextPiece& text, Regex::Scratch& regex, Scratch& scratch, Sink& sink) const {
  if (scratch.stages.size() < stages_.size()) scratch.stages.resize(stages_.size());
  Run{stages_, regex, scratch, sink}.at(0, text);
}

}  // namespace samba
