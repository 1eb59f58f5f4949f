// What samba decode prints: tokens as they come, results as JSON or text, rates.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "model_input.h"
#include "output.h"
#include "samba/generate/decode_session.h"

namespace samba::apps {

// {"index", "sample", "prompt", "prompt_tokens", "tokens", "text", "finish_reason", "logprobs", "timing"}; "sample"
// with several of them, "text" with a tokenizer, "logprobs" when asked for.
nlohmann::ordered_json result_json(std::size_t index, std::size_t sample, const Prompt& prompt,
                                   const DecodeResult& result, const DecodeOptions& options);

// Prints the tokens of one continuation as they arrive: text, ids, or with --logprobs a line a token.
class TokenPrinter {
 public:
  explicit TokenPrinter(const DecodeOptions& options) : options_(options) {}
  void operator()(const DecodeEvent& event);
  // Ends the line of an interrupted continuation.
  void end_line();

 private:
  const DecodeOptions& options_;
  bool begun_ = false;
  bool ended_ = false;
};

// Prints results in the order of the requests, each as soon as those before it are printed.
class ResultPrinter {
 public:
  ResultPrinter(const std::vector<Prompt>& prompts, const DecodeOptions& options, bool json)
      : prompts_(prompts), options_(options), json_(json) {}
  void operator()(std::size_t number, const DecodeResult& result);

 private:
  std::string text_of(std::size_t number, const DecodeResult& result) const;

  const std::vector<Prompt>& prompts_;
  const DecodeOptions& options_;
  bool json_;
  std::size_t next_ = 0;
  std::map<std::size_t, std::string> waiting_;
};

// "prompt: 10 tokens in 0.003 s, 3300 tokens/s; generated: 12 tokens in 0.020 s, 550 tokens/s" on stderr.
void print_rates(const DecodeTimes& times);

}  // namespace samba::apps
