#include "decode_output.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace samba::apps {

namespace {

double per_second(double count, double seconds) { return seconds > 0.0 ? count / seconds : 0.0; }

double rounded(double value) { return std::round(value * 1e6) / 1e6; }

std::string logprob_line(std::int32_t token, float logprob, const std::string& text) {
  char line[64];
  std::snprintf(line, sizeof line, "%d\t%.6f\t", token, static_cast<double>(logprob));
  return line + nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// A token's own text, or "" where there is no tokenizer.
std::string own_text(const DecodeOptions& options, std::int32_t token) {
  return options.tokenizer == nullptr ? "" : token_text(*options.tokenizer, token);
}

}  // namespace

nlohmann::ordered_json result_json(std::size_t index, std::size_t sample, const Prompt& prompt,
                                   const DecodeResult& result, const DecodeOptions& options) {
  auto line = nlohmann::ordered_json::object();
  line["index"] = index;
  if (options.samples > 1) line["sample"] = sample;
  if (prompt.text) line["prompt"] = *prompt.text;
  line["prompt_tokens"] = prompt.tokens;
  line["tokens"] = result.tokens;
  if (options.tokenizer != nullptr) line["text"] = result.text;
  line["finish_reason"] = finish_reason_name(result.reason);
  if (options.logprobs) {
    line["logprobs"] = nlohmann::json::array();
    for (const float value : result.logprobs) line["logprobs"].push_back(static_cast<double>(value));
  }
  // The first token comes from the prompt's logits: no step is made for it.
  const double steps = std::max(0.0, static_cast<double>(result.tokens.size()) - 1.0);
  line["timing"] = {{"prefill_seconds", rounded(result.prefill_seconds)},
                    {"prefill_tokens_per_second",
                     rounded(per_second(static_cast<double>(prompt.tokens.size()), result.prefill_seconds))},
                    {"decode_seconds", rounded(result.decode_seconds)},
                    {"decode_tokens_per_second", rounded(per_second(steps, result.decode_seconds))}};
  return line;
}

void TokenPrinter::operator()(const DecodeEvent& event) {
  ended_ = event.last;
  if (options_.logprobs) {
    ended_ = true;
    print(logprob_line(event.token, event.logprob, own_text(options_, event.token)));
  } else if (options_.tokenizer != nullptr) {
    print(event.text + (event.last ? "\n" : ""));
  } else {
    print((begun_ ? "," : "") + std::to_string(event.token) + (event.last ? "\n" : ""));
  }
  begun_ = true;
}

void TokenPrinter::end_line() {
  if (begun_ && !ended_) print("\n");
}

std::string ResultPrinter::text_of(std::size_t number, const DecodeResult& result) const {
  const auto samples = static_cast<std::size_t>(options_.samples);
  const std::size_t index = number / samples;
  const std::size_t sample = number % samples;
  if (json_) return json_line(result_json(index, sample, prompts_[index], result, options_));
  std::string text = "=== ";
  if (prompts_.size() > 1) text += "prompt " + std::to_string(index) + (samples > 1 ? ", " : "");
  if (samples > 1) text += "sample " + std::to_string(sample);
  text += "\n";
  if (options_.logprobs) {
    for (std::size_t t = 0; t < result.tokens.size(); ++t) {
      text += logprob_line(result.tokens[t], result.logprobs[t], own_text(options_, result.tokens[t]));
    }
    return text;
  }
  if (options_.tokenizer != nullptr) return text + result.text + "\n";
  for (std::size_t t = 0; t < result.tokens.size(); ++t) text += (t > 0 ? "," : "") + std::to_string(result.tokens[t]);
  return text + "\n";
}

void ResultPrinter::operator()(std::size_t number, const DecodeResult& result) {
  waiting_.emplace(number, text_of(number, result));
  while (!waiting_.empty() && waiting_.begin()->first == next_) {
    print(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
    ++next_;
  }
}

void print_rates(const DecodeTimes& times) {
  std::fprintf(stderr,
               "prompt: %lld tokens in %.3f s, %.0f tokens/s; generated: %lld tokens in %.3f s, %.0f tokens/s\n",
               static_cast<long long>(times.prompt_tokens), times.prefill_seconds,
               per_second(static_cast<double>(times.prompt_tokens), times.prefill_seconds),
               static_cast<long long>(times.generated_tokens), times.decode_seconds,
               per_second(static_cast<double>(times.stepped_tokens), times.decode_seconds));
}

}  // namespace samba::apps
