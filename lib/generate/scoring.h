// How well a model predicts a text: log-likelihood a token, perplexity, bits per byte; and which of several endings it
// finds likeliest.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "samba/model/samba_stack.h"

namespace samba {

// A text longer than the window is read in windows: one starts every `stride` tokens, from the empty state, and scores
// what the one before has not.
struct ScoreOptions {
  Index chunk = 256;  // tokens read at once; any size gives the same bits
  Index window = 0;   // tokens a window reads; 0: as many as the model can hold
  Index stride = 0;   // from a window's start to the next one's; 0: the window, then windows share no token they read
};

struct Score {
  std::vector<float> log_likelihood;  // of tokens 1 .. n-1, natural logarithm
  double total = 0.0;                 // their sum, added in order in binary64
  double perplexity = 0.0;            // exp(-total / count)
  double bits_per_token = 0.0;        // -total / count / log(2)
};

// Every token but the first is predicted once. Error(value): fewer than two tokens, an id outside the vocabulary.
Score score_tokens(SambaStack& stack, std::span<const std::int32_t> tokens, const ScoreOptions& options = {},
                   const std::function<void(std::size_t done)>& progress = {});

// Log-likelihoods of the tokens of several endings behind one beginning, which is read once. Error(value): an empty
// beginning or ending, an id outside the vocabulary, more tokens than the model has positions.
std::vector<std::vector<float>> score_endings(SambaStack& stack, std::span<const std::int32_t> beginning,
                                              std::span<const std::vector<std::int32_t>> endings);

}  // namespace samba
