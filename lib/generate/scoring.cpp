#include "samba/generate/scoring.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "samba/core/error.h"
#include "samba/generate/decode_session.h"
#include "samba/train/loss.h"

namespace samba {

namespace {

// Log-likelihoods of targets from logits (rows, vocab), the rows of the cross-entropy with the sign turned.
void append_likelihoods(Executor& executor, const Array& logits, std::span<const std::int32_t> targets, Index vocab,
                        std::vector<float>& likelihoods) {
  const auto rows = static_cast<Index>(targets.size());
  CrossEntropyOptions options;
  options.reduction = Reduction::none;
  const CrossEntropyResult result = cross_entropy(executor, ConstArray{DType::float32, {rows, vocab}, logits.data()},
                                                  ConstArray{DType::int32, {rows}, targets.data()}, options);
  for (const float row_loss : result.row_loss.floats()) likelihoods.push_back(-row_loss);
}

}  // namespace

Score score_tokens(SambaStack& stack, std::span<const std::int32_t> tokens, const ScoreOptions& options,
                   const std::function<void(std::size_t)>& progress) {
  if (tokens.size() < 2) {
    refuse_value("a text to score needs at least two tokens, got " + std::to_string(tokens.size()));
  }
  if (options.chunk < 1) refuse_value("chunk: must be >= 1, got " + std::to_string(options.chunk));
  const Index limit = position_limit(stack.config());
  if (options.context < 0 || options.context > limit) {
    refuse_value("context: must be from 1 to " + std::to_string(limit) + ", or 0 for the most, got " +
                 std::to_string(options.context));
  }
  const Index vocab = stack.config().vocab;
  const auto context = static_cast<std::size_t>(options.context == 0 ? limit : options.context);
  const std::size_t inputs = tokens.size() - 1;  // the last token is only a target
  const auto state = stack.allocate_state(1, static_cast<Index>(std::min(context, inputs)));
  Score score;
  score.log_likelihood.reserve(inputs);
  for (std::size_t place = 0; place < inputs;) {
    const std::size_t in_window = place % context;
    if (in_window == 0) state->reset();
    const std::size_t count = std::min({static_cast<std::size_t>(options.chunk), context - in_window, inputs - place});
    const ConstArray ids{DType::int32, {1, static_cast<Index>(count)}, tokens.data() + place};
    const Array logits = stack.forward(ids, *state);
    append_likelihoods(stack.executor(), logits, tokens.subspan(place + 1, count), vocab, score.log_likelihood);
    place += count;
    if (progress) progress(place);
  }
  for (const float likelihood : score.log_likelihood) score.total += static_cast<double>(likelihood);
  const double mean = -score.total / static_cast<double>(inputs);
  score.perplexity = std::exp(mean);
  score.bits_per_token = mean / std::log(2.0);
  return score;
}

}  // namespace samba
