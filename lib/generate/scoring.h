// How well a model predicts a text: log-likelihood a token, perplexity, bits per byte.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "samba/model/samba_stack.h"

namespace samba {

struct ScoreOptions {
  Index chunk = 256;  // tokens read at once; any size gives the same bits
  Index context = 0;  // tokens after which the state starts anew; 0: as many as the model can hold
};

struct Score {
  std::vector<float> log_likelihood;  // of tokens 1 .. n-1, natural logarithm
  double total = 0.0;                 // their sum, added in order in binary64
  double perplexity = 0.0;            // exp(-total / count)
  double bits_per_token = 0.0;        // -total / count / log(2); with the byte vocabulary: bits per byte
};

// Every token but the first is predicted once. A text longer than the context is read in windows that overlap by one
// token. Error(value): fewer than two tokens, an id outside the vocabulary.
Score score_tokens(SambaStack& stack, std::span<const std::int32_t> tokens, const ScoreOptions& options = {},
                   const std::function<void(std::size_t done)>& progress = {});

}  // namespace samba
