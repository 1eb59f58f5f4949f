#include "samba/generate/decode_session.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "samba/core/error.h"
#include "samba/text/tokenizer.h"

namespace samba {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Holds back the end of a text while it may still become a stop text.
class StopFilter {
 public:
  explicit StopFilter(const std::vector<std::string>& stop) : stop_(stop) {}

  // The text that may be given out; sets `stopped` when a stop text is complete.
  std::string push(const std::string& text, bool& stopped) {
    held_ += text;
    std::size_t cut = std::string::npos;
    for (const std::string& stop : stop_) cut = std::min(cut, held_.find(stop));
    if (cut != std::string::npos) {
      stopped = true;
      held_.resize(cut);
      return std::exchange(held_, "");
    }
    std::size_t keep = 0;
    for (const std::string& stop : stop_) {
      for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
        if (held_.ends_with(std::string_view(stop).substr(0, n))) keep = n;
      }
    }
    const std::string shown = held_.substr(0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
    return shown;
  }
  std::string finish() { return std::exchange(held_, ""); }

 private:
  const std::vector<std::string>& stop_;
  std::string held_;
};

struct Row {
  explicit Row(const DecodeOptions& options) : stop(options.stop) {}

  std::vector<std::int32_t> tokens;  // prompt and what was generated
  std::size_t prompt = 0;            // tokens of the prompt
  bool done = false;
  Utf8Stream utf8;
  StopFilter stop;
  DecodeResult result;
};

void check_requests(const SambaStack& stack, std::span<const DecodeRequest> requests, const DecodeOptions& options) {
  if (requests.empty()) refuse_value("decode needs at least one prompt");
  if (options.max_tokens < 1) refuse_value("max tokens: must be >= 1, got " + std::to_string(options.max_tokens));
  const Index vocab = stack.config().vocab;
  const Index limit = position_limit(stack.config());
  for (const std::string& stop : options.stop) {
    if (stop.empty()) refuse_value("stop: must be a text that is not empty");
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto& prompt = requests[i].prompt;
    const std::string name = "prompt " + std::to_string(i);
    if (prompt.empty()) refuse_value(name + " is empty; at least one token is needed");
    for (std::size_t t = 0; t < prompt.size(); ++t) {
      if (prompt[t] < 0 || prompt[t] >= vocab) {
        refuse_value(name + ": token " + std::to_string(prompt[t]) + " at position " + std::to_string(t) +
                     " is outside the vocabulary [0, " + std::to_string(vocab) + ")");
      }
    }
    const Index positions = static_cast<Index>(prompt.size()) + options.max_tokens - 1;
    if (positions > limit) {
      refuse_value(name + " and max tokens need " + std::to_string(positions) + " positions; the model has " +
                   std::to_string(limit));
    }
  }
}

// Takes the next token of a row from its logits.
void generate(Row& row, std::size_t number, const DecodeRequest& request, const DecodeOptions& options,
              Sampler& sampler, std::span<const float> logits,
              const std::function<void(const DecodeEvent&)>& on_event) {
  const std::size_t index = row.tokens.size() - row.prompt;
  DecodeEvent event;
  event.request = number;
  event.token = sampler.next(logits, row.tokens, request.sample, index);
  row.tokens.push_back(event.token);
  row.result.tokens.push_back(event.token);
  if (options.logprobs) {
    event.logprob = log_probability(logits, event.token);
    row.result.logprobs.push_back(event.logprob);
  }
  bool stopped = false;
  if (options.text) {
    const std::int32_t tokens[] = {event.token};
    event.text = row.stop.push(row.utf8.push(byte_text(tokens)), stopped);
  }
  row.done = stopped || static_cast<Index>(index) + 1 == options.max_tokens;
  if (row.done && !stopped && options.text) {
    event.text += row.stop.push(row.utf8.finish(), stopped) + row.stop.finish();
  }
  if (stopped) row.result.reason = FinishReason::stop;
  event.last = row.done;
  row.result.text += event.text;
  if (on_event) on_event(event);
}

}  // namespace

std::string finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::length:
      return "length";
    case FinishReason::stop:
      return "stop";
    case FinishReason::interrupted:
      break;
  }
  return "interrupted";
}

std::vector<DecodeResult> decode(SambaStack& stack, std::span<const DecodeRequest> requests,
                                 const DecodeOptions& options, const std::function<void(const DecodeEvent&)>& on_event,
                                 const std::function<bool()>& interrupted, DecodeTimes* times) {
  check_requests(stack, requests, options);
  const auto vocab = static_cast<std::size_t>(stack.config().vocab);
  const std::size_t rows = requests.size();
  Sampler sampler(options.sampler, stack.config().vocab);
  std::size_t shortest = std::numeric_limits<std::size_t>::max();
  std::size_t longest = 0;
  std::vector<Row> state;
  for (const DecodeRequest& request : requests) {
    state.emplace_back(options);
    state.back().tokens.reserve(request.prompt.size() + static_cast<std::size_t>(options.max_tokens));
    state.back().tokens = request.prompt;
    state.back().prompt = request.prompt.size();
    shortest = std::min(shortest, request.prompt.size());
    longest = std::max(longest, request.prompt.size());
  }
  const auto samba_state =
      stack.allocate_state(static_cast<Index>(rows), static_cast<Index>(longest) + options.max_tokens);
  std::vector<float> logits(rows * vocab);
  std::vector<std::int32_t> ids;
  for (const Row& row : state) {
    ids.insert(ids.end(), row.tokens.begin(), row.tokens.begin() + static_cast<std::ptrdiff_t>(shortest));
  }
  const Clock::time_point start = Clock::now();
  stack.prefill(ids, static_cast<Index>(shortest), *samba_state, logits);
  const double prefill_seconds = seconds_since(start);

  ids.resize(rows);
  std::size_t position = shortest;  // tokens of each row that the state has consumed
  bool stopped_by_user = false;
  while (true) {
    stopped_by_user = interrupted && interrupted();
    if (stopped_by_user) break;
    bool open = false;
    for (std::size_t i = 0; i < rows; ++i) {
      Row& row = state[i];
      if (!row.done && row.tokens.size() == position) {
        generate(row, i, requests[i], options, sampler, std::span(logits).subspan(i * vocab, vocab), on_event);
      }
      open = open || !row.done;
    }
    if (!open) break;
    // A finished row repeats a token that nobody looks at.
    for (std::size_t i = 0; i < rows; ++i) ids[i] = position < state[i].tokens.size() ? state[i].tokens[position] : 0;
    stack.step(ids, *samba_state, logits);
    ++position;
  }
  std::vector<DecodeResult> results;
  for (Row& row : state) {
    if (!row.done) row.result.reason = FinishReason::interrupted;
    results.push_back(std::move(row.result));
  }
  if (times != nullptr) {
    times->prefill_seconds = prefill_seconds;
    times->decode_seconds = seconds_since(start) - prefill_seconds;
    for (std::size_t i = 0; i < rows; ++i) {
      times->prompt_tokens += static_cast<Index>(requests[i].prompt.size());
      times->generated_tokens += static_cast<Index>(results[i].tokens.size());
    }
  }
  return results;
}

}  // namespace samba
