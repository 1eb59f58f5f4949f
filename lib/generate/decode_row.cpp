#include "samba/generate/decode_row.h"

#include <algorithm>
#include <utility>

namespace samba {

DecodeRow::DecodeRow(std::size_t number, Sequence sequence, const DecodeOptions& options, Index max_tokens)
    : number_(number), sequence_(std::move(sequence)), options_(options), max_tokens_(max_tokens), stop_(options.stop) {
  if (options_.tokenizer == nullptr) return;
  characters_.emplace(*options_.tokenizer, true);
  // Where the text stands: a space at the start of a text is not one inside it. What the prompt leaves of an unfinished
  // character belongs to the prompt.
  for (const std::int32_t id : sequence_.tokens) characters_->push(id);
  if (sequence_.generated == 0) characters_->finish();
}

DecodeEvent DecodeRow::take(Sampler& sampler, std::span<const float> logits) {
  DecodeEvent event;
  event.request = number_;
  event.token = sampler.next(logits, sequence_.tokens, sequence_.sample, sequence_.generated);
  sequence_.tokens.push_back(event.token);
  ++sequence_.generated;
  result_.tokens.push_back(event.token);
  if (options_.logprobs) {
    event.logprob = log_probability(logits, event.token);
    result_.logprobs.push_back(event.logprob);
  }
  const bool ends = std::find(options_.end_ids.begin(), options_.end_ids.end(), event.token) != options_.end_ids.end();
  if (ends) result_.reason = FinishReason::end;
  done_ = ends || static_cast<Index>(result_.tokens.size()) == max_tokens_;
  if (characters_) add_text(event);
  event.last = done_;
  result_.text += event.text;
  return event;
}

void DecodeRow::add_text(DecodeEvent& event) {
  bool stopped = false;
  if (result_.reason != FinishReason::end) event.text = stop_.push(characters_->push(event.token), stopped);
  if (done_ && !stopped) event.text += stop_.push(characters_->finish(), stopped) + stop_.finish();
  if (!stopped) return;
  done_ = true;
  result_.reason = FinishReason::stop;
}

DecodeResult DecodeRow::finish() {
  if (!done_) {
    result_.reason = FinishReason::interrupted;
    bool stopped = false;
    if (characters_) result_.text += stop_.push(characters_->finish(), stopped) + stop_.finish();
  }
  if (options_.keep_sequences) result_.sequence = std::move(sequence_);
  return std::move(result_);
}

}  // namespace samba
