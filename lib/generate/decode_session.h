// Continues prompts token by token: streamed, with stop rules, several prompts at once.
//
// Prompts of different lengths run in one batch: all read the shortest one's length together, then every row reads on
// in its prompt or continues it, one token a step. Rows are independent, so each prompt gets the bits it has alone.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "samba/generate/sampler.h"
#include "samba/model/samba_stack.h"

namespace samba {

struct DecodeRequest {
  std::vector<std::int32_t> prompt;  // at least one token
  std::uint32_t sample = 0;          // number of the random stream
};

struct DecodeOptions {
  Index max_tokens = 128;
  SamplerOptions sampler;
  std::vector<std::string> stop;  // ends before the text in which one of these appears; needs the byte vocabulary
  bool text = true;               // tokens are bytes: give out text
  bool logprobs = false;
};

enum class FinishReason { length, stop, interrupted };
std::string finish_reason_name(FinishReason reason);  // "length", "stop", "interrupted"

struct DecodeResult {
  std::vector<std::int32_t> tokens;  // generated ones
  std::vector<float> logprobs;       // of the tokens, with `logprobs`
  std::string text;                  // valid UTF-8, without the stop text
  FinishReason reason = FinishReason::length;
};

struct DecodeEvent {
  std::size_t request = 0;
  std::int32_t token = 0;
  float logprob = 0.0F;
  std::string text;  // what may be shown now: complete characters that cannot become a stop text
  bool last = false;
};

struct DecodeTimes {
  double prefill_seconds = 0.0;  // until the first logits
  double decode_seconds = 0.0;
  Index prompt_tokens = 0;
  Index generated_tokens = 0;
};

// Runs all requests to their end. `on_event` may be empty; `interrupted` is asked before each token. Refused before
// anything runs (Error(value)): no request, an empty prompt, an id outside the vocabulary, more positions than the
// model can hold.
std::vector<DecodeResult> decode(SambaStack& stack, std::span<const DecodeRequest> requests,
                                 const DecodeOptions& options,
                                 const std::function<void(const DecodeEvent&)>& on_event = {},
                                 const std::function<bool()>& interrupted = {}, DecodeTimes* times = nullptr);

}  // namespace samba
