#include "samba/generate/scoring.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "samba/core/error.h"
#include "samba/generate/sequence.h"
#include "samba/model/loss.h"

namespace samba {

namespace {

// Log-likelihoods of targets from logits (rows, vocab), the rows of the cross-entropy with the sign turned.
void append_likelihoods(Executor& executor, std::span<const float> logits, std::span<const std::int32_t> targets,
                        Index vocab, std::vector<float>& likelihoods) {
  const auto rows = static_cast<Index>(targets.size());
  CrossEntropyOptions options;
  options.reduction = Reduction::none;
  const CrossEntropyResult result = cross_entropy(executor, ConstArray{DType::float32, {rows, vocab}, logits.data()},
                                                  ConstArray{DType::int32, {rows}, targets.data()}, options);
  for (const float row_loss : result.row_loss.floats()) likelihoods.push_back(-row_loss);
}

struct Windows {
  std::size_t length;
  std::size_t stride;
};

Windows checked_windows(const SambaStack& stack, const ScoreOptions& options) {
  if (options.chunk < 1) refuse_value("chunk: must be >= 1, got " + std::to_string(options.chunk));
  const Index limit = position_limit(stack.config());
  if (options.window < 0 || options.window > limit) {
    refuse_value("window: must be from 1 to " + std::to_string(limit) + ", or 0 for the most, got " +
                 std::to_string(options.window));
  }
  const Index window = options.window == 0 ? limit : options.window;
  if (options.stride < 0 || options.stride > window) {
    refuse_value("stride: must be from 1 to the window, " + std::to_string(window) + ", or 0 for the window, got " +
                 std::to_string(options.stride));
  }
  return {static_cast<std::size_t>(window), static_cast<std::size_t>(options.stride == 0 ? window : options.stride)};
}

}  // namespace

Score score_tokens(SambaStack& stack, std::span<const std::int32_t> tokens, const ScoreOptions& options,
                   const std::function<void(std::size_t)>& progress) {
  if (tokens.size() < 2) {
    refuse_value("a text to score needs at least two tokens, got " + std::to_string(tokens.size()));
  }
  const Windows windows = checked_windows(stack, options);
  check_token_ids(tokens, stack.config().vocab, "the text");
  const auto vocab = static_cast<std::size_t>(stack.config().vocab);
  const std::size_t inputs = tokens.size() - 1;  // the last token is only a target
  const auto state = stack.allocate_state(1, static_cast<Index>(std::min(windows.length, inputs)));
  Score score;
  score.log_likelihood.reserve(inputs);
  for (std::size_t begin = 0; score.log_likelihood.size() < inputs; begin += windows.stride) {
    const std::size_t end = std::min(inputs, begin + windows.length);
    state->reset();
    for (std::size_t place = begin; place < end;) {
      const std::size_t count = std::min(static_cast<std::size_t>(options.chunk), end - place);
      const ConstArray ids{DType::int32, {1, static_cast<Index>(count)}, tokens.data() + place};
      const Array logits = stack.forward(ids, *state);
      const std::size_t known = std::max(score.log_likelihood.size(), place) - place;  // scored by the window before
      if (known < count) {
        append_likelihoods(stack.executor(), logits.floats().subspan(known * vocab),
                           tokens.subspan(place + known + 1, count - known), stack.config().vocab,
                           score.log_likelihood);
      }
      place += count;
      if (progress) progress(score.log_likelihood.size());
    }
  }
  for (const float likelihood : score.log_likelihood) score.total += static_cast<double>(likelihood);
  const double mean = -score.total / static_cast<double>(inputs);
  score.perplexity = std::exp(mean);
  score.bits_per_token = mean / std::log(2.0);
  return score;
}

std::vector<std::vector<float>> score_endings(SambaStack& stack, std::span<const std::int32_t> beginning,
                                              std::span<const std::vector<std::int32_t>> endings) {
  const Index vocab = stack.config().vocab;
  const Index limit = position_limit(stack.config());
  if (beginning.empty()) refuse_value("the beginning is empty; at least one token is needed");
  check_token_ids(beginning, vocab, "the beginning");
  for (std::size_t i = 0; i < endings.size(); ++i) {
    const std::string name = "ending " + std::to_string(i);
    if (endings[i].empty()) refuse_value(name + " is empty; at least one token is needed");
    check_token_ids(endings[i], vocab, name);
    const auto positions = static_cast<Index>(beginning.size() + endings[i].size() - 1);
    if (positions > limit) {
      refuse_value(name + " and the beginning need " + std::to_string(positions) + " positions; the model has " +
                   std::to_string(limit));
    }
  }
  Sequence start;
  start.tokens.assign(beginning.begin(), beginning.end());
  read_tokens(stack, start);
  std::vector<std::vector<float>> result;
  for (const std::vector<std::int32_t>& ending : endings) {
    std::vector<float>& likelihoods = result.emplace_back();
    append_likelihoods(stack.executor(), start.logits, std::span(ending).first(1), vocab, likelihoods);
    if (ending.size() == 1) continue;
    Sequence row = start.clone();
    reserve(stack, row, static_cast<Index>(beginning.size() + ending.size() - 1));
    const ConstArray ids{DType::int32, {1, static_cast<Index>(ending.size()) - 1}, ending.data()};
    const Array logits = stack.forward(ids, *row.state);
    append_likelihoods(stack.executor(), logits.floats(), std::span(ending).subspan(1), vocab, likelihoods);
  }
  return result;
}

}  // namespace samba
