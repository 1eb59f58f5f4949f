// Continues prompts token by token: streamed, with stop rules, many prompts in batches of limited size.
//
// Rows join a batch when there is room and leave it when they end (continuous batching). Every row has a state of its
// own, at a position of its own, and rows are independent: each prompt gets the bits it has alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "samba/generate/sampler.h"
#include "samba/generate/sequence.h"
#include "samba/model/samba_stack.h"
#include "samba/text/tokenizer.h"

namespace samba {

struct DecodeRequest {
  std::vector<std::int32_t> prompt;   // at least one token, unless `from` has logits
  std::uint32_t sample = 0;           // number of the random stream
  const Sequence* from = nullptr;     // goes on behind this one, which stays as it is; its sample counts
  std::optional<Index> max_tokens{};  // instead of the options'
};

struct DecodeOptions {
  Index max_tokens = 128;
  Index batch = 8;    // rows decoded together at most
  Index samples = 1;  // of every request: the streams sample, sample + 1, ...; the prompt is read once
  SamplerOptions sampler;
  std::vector<std::string> stop;      // ends before the text in which one of these appears; needs a tokenizer
  std::vector<std::int32_t> end_ids;  // ends with one of these tokens, which adds no text
  const Tokenizer* tokenizer = &byte_tokenizer();  // gives out text; null: tokens alone
  bool logprobs = false;
  bool keep_sequences = false;  // results have their sequences, to go on from
};

// length: all max_tokens were generated; stop: a stop text; end: one of end_ids; interrupted.
enum class FinishReason { length, stop, end, interrupted };
std::string finish_reason_name(FinishReason reason);  // "length", "stop", "end", "interrupted"

struct DecodeResult {
  std::vector<std::int32_t> tokens;  // generated ones, the ending token included
  std::vector<float> logprobs;       // of the tokens, with `logprobs`
  std::string text;                  // valid UTF-8, whole characters, without the stop text
  FinishReason reason = FinishReason::length;
  double prefill_seconds = 0.0;        // until the first logits; 0 where another sample has read the prompt
  double decode_seconds = 0.0;         // from there to the end, other rows' steps among it
  std::optional<Sequence> sequence{};  // with keep_sequences; its last token is not read
};

struct DecodeEvent {
  std::size_t request = 0;  // request * samples + sample
  std::int32_t token = 0;
  float logprob = 0.0F;
  std::string text;  // what may be shown now: complete characters that cannot become a stop text
  bool last = false;
};

struct DecodeTimes {
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;
  Index prompt_tokens = 0;  // that were read
  Index generated_tokens = 0;
  Index stepped_tokens = 0;  // of these, the ones that a step was made for
};

struct DecodeHooks {
  std::function<void(const DecodeEvent&)> on_event;                         // each token
  std::function<void(std::size_t request, const DecodeResult&)> on_result;  // each request when it ends
  std::function<bool()> interrupted;                                        // asked before each step
  DecodeTimes* times = nullptr;
};

// Runs all requests to their end: `samples` results a request. Refused before anything runs (Error(value)): no request,
// an empty prompt, an id outside the vocabulary, more positions than the model can hold.
std::vector<DecodeResult> decode(SambaStack& stack, std::span<const DecodeRequest> requests,
                                 const DecodeOptions& options, const DecodeHooks& hooks = {});

}  // namespace samba
