#include "samba/generate/decode_session.h"

#include <algorithm>
#include <chrono>
#include <list>
#include <utility>

#include "samba/core/error.h"
#include "samba/generate/decode_row.h"

namespace samba {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr Index kMostCounted = Index{1} << 40;  // beyond it a number of positions is no longer said

Index max_tokens_of(const DecodeRequest& request, const DecodeOptions& options) {
  return request.max_tokens.value_or(options.max_tokens);
}

void check_options(const DecodeOptions& options) {
  check_sampler_options(options.sampler);
  const auto at_least_one = [](const char* name, Index value) {
    if (value < 1) refuse_value(std::string(name) + ": must be >= 1, got " + std::to_string(value));
  };
  at_least_one("max tokens", options.max_tokens);
  at_least_one("batch", options.batch);
  at_least_one("samples", options.samples);
  for (const std::string& stop : options.stop) {
    if (stop.empty()) refuse_value("stop: must be a text that is not empty");
  }
  if (!options.stop.empty() && options.tokenizer == nullptr) refuse_value("stop: the model has no tokenizer");
}

void check_request(const SambaStack& stack, const DecodeRequest& request, const DecodeOptions& options,
                   const std::string& name) {
  const bool goes_on = request.from != nullptr && !request.from->tokens.empty();
  if (request.prompt.empty() && !goes_on) refuse_value(name + " is empty; at least one token is needed");
  check_token_ids(request.prompt, stack.config().vocab, name);
  const Index more = max_tokens_of(request, options);
  if (more < 1) refuse_value(name + ": max tokens must be >= 1, got " + std::to_string(more));
  const Index limit = position_limit(stack.config());
  const auto before = static_cast<Index>(request.prompt.size() + (goes_on ? request.from->tokens.size() : 0));
  if (before > limit) {
    refuse_value(name + " has " + std::to_string(before) + " tokens; the model has " + std::to_string(limit) +
                 " positions");
  }
  // The last token generated is not read.
  if (more - 1 > limit - before) {
    refuse_value(
        name + " and max tokens need " +
        (more > kMostCounted ? "more than " + std::to_string(kMostCounted) : std::to_string(before + more - 1)) +
        " positions; the model has " + std::to_string(limit));
  }
}

// The batch: requests wait, join as rows, leave when they are done.
class Batch {
 public:
  Batch(SambaStack& stack, std::span<const DecodeRequest> requests, const DecodeOptions& options,
        const DecodeHooks& hooks)
      : stack_(stack),
        requests_(requests),
        options_(options),
        hooks_(hooks),
        sampler_(options.sampler, stack.config().vocab),
        results_(requests.size() * static_cast<std::size_t>(options.samples)) {}

  std::vector<DecodeResult> run() {
    while (!stopped()) {
      while (rows_.size() < static_cast<std::size_t>(options_.batch) && waiting_ < results_.size()) {
        if (!join()) break;
      }
      if (stopped_ || rows_.empty()) break;
      step();
    }
    finish_interrupted();
    return std::move(results_);
  }

 private:
  struct Active {
    DecodeRow row;
    Clock::time_point start;
  };

  bool stopped() {
    stopped_ = stopped_ || (hooks_.interrupted && hooks_.interrupted());
    return stopped_;
  }

  // The next waiting row: reads its prompt, or takes over what the sample before it has read.
  bool join() {
    const std::size_t number = waiting_;
    const auto samples = static_cast<std::size_t>(options_.samples);
    const DecodeRequest& request = requests_[number / samples];
    const auto sample = static_cast<std::uint32_t>(number % samples);
    const Clock::time_point start = Clock::now();
    if (sample == 0) {
      prompt_ = request.from == nullptr ? Sequence() : request.from->clone();
      if (request.from == nullptr) prompt_.sample = request.sample;
      prompt_.tokens.insert(prompt_.tokens.end(), request.prompt.begin(), request.prompt.end());
      if (hooks_.times != nullptr) {
        hooks_.times->prompt_tokens += static_cast<Index>(prompt_.tokens.size() - prompt_.read());
      }
      if (!read_tokens(stack_, prompt_, kPrefillChunk, hooks_.interrupted)) {
        stopped_ = true;
        return false;
      }
    }
    const double seconds = seconds_since(start);
    if (sample == 0) results_[number].prefill_seconds = seconds;
    if (sample == 0 && hooks_.times != nullptr) hooks_.times->prefill_seconds += seconds;
    ++waiting_;
    const bool last_sample = sample + 1 == samples;
    Sequence sequence = last_sample ? std::move(prompt_) : prompt_.clone();
    sequence.sample += sample;
    const std::vector<float> logits = std::move(sequence.logits);
    sequence.logits.clear();
    rows_.push_back({DecodeRow(number, std::move(sequence), options_, max_tokens_of(request, options_)), Clock::now()});
    take(std::prev(rows_.end()), logits);
    return true;
  }

  // A token for a row from its logits; a row that is done leaves.
  void take(std::list<Active>::iterator active, std::span<const float> logits) {
    const DecodeEvent event = active->row.take(sampler_, logits);
    if (hooks_.on_event) hooks_.on_event(event);
    if (hooks_.times != nullptr) ++hooks_.times->generated_tokens;
    if (active->row.done()) leave(active);
  }

  void leave(std::list<Active>::iterator active) {
    const std::size_t number = active->row.number();
    const double prefill_seconds = results_[number].prefill_seconds;
    results_[number] = active->row.finish();
    results_[number].prefill_seconds = prefill_seconds;
    results_[number].decode_seconds = seconds_since(active->start);
    rows_.erase(active);
    if (hooks_.on_result) hooks_.on_result(number, results_[number]);
  }

  void step() {
    const Clock::time_point start = Clock::now();
    const auto vocab = static_cast<std::size_t>(stack_.config().vocab);
    ids_.clear();
    states_.clear();
    for (Active& active : rows_) {
      Sequence& sequence = active.row.sequence();
      reserve(stack_, sequence, static_cast<Index>(sequence.tokens.size()));
      ids_.push_back(active.row.last_token());
      states_.push_back(sequence.state.get());
    }
    logits_.resize(ids_.size() * vocab);
    if (ids_.size() == 1) {
      stack_.step(ids_, *states_[0], logits_);
    } else {
      stack_.step_rows(ids_, states_, logits_);
    }
    std::size_t row = 0;
    for (auto active = rows_.begin(); active != rows_.end(); ++row) {
      const auto next = std::next(active);
      take(active, std::span(logits_).subspan(row * vocab, vocab));
      active = next;
    }
    if (hooks_.times == nullptr) return;
    hooks_.times->decode_seconds += seconds_since(start);
    hooks_.times->stepped_tokens += static_cast<Index>(ids_.size());
  }

  // After Ctrl-C: rows end where they are, waiting requests have no tokens.
  void finish_interrupted() {
    while (!rows_.empty()) leave(rows_.begin());
    for (; waiting_ < results_.size(); ++waiting_) {
      results_[waiting_].reason = FinishReason::interrupted;
      if (hooks_.on_result) hooks_.on_result(waiting_, results_[waiting_]);
    }
  }

  SambaStack& stack_;
  std::span<const DecodeRequest> requests_;
  const DecodeOptions& options_;
  const DecodeHooks& hooks_;
  Sampler sampler_;
  std::vector<DecodeResult> results_;
  Sequence prompt_;          // of the request whose samples are joining
  std::size_t waiting_ = 0;  // the first result whose row has not joined
  std::list<Active> rows_;
  bool stopped_ = false;
  std::vector<std::int32_t> ids_;
  std::vector<SambaState*> states_;
  std::vector<float> logits_;
};

}  // namespace

std::string finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::length:
      return "length";
    case FinishReason::stop:
      return "stop";
    case FinishReason::end:
      return "end";
    case FinishReason::interrupted:
      break;
  }
  return "interrupted";
}

std::vector<DecodeResult> decode(SambaStack& stack, std::span<const DecodeRequest> requests,
                                 const DecodeOptions& options, const DecodeHooks& hooks) {
  check_options(options);
  if (requests.empty()) refuse_value("decode needs at least one prompt");
  for (std::size_t i = 0; i < requests.size(); ++i) {
    check_request(stack, requests[i], options, "prompt " + std::to_string(i));
  }
  return Batch(stack, requests, options, hooks).run();
}

}  // namespace samba
