// samba decode: continues prompts, streamed.

#include <algorithm>
#include <cstdio>

#include "commands.h"
#include "model_input.h"
#include "output.h"
#include "samba/core/error.h"
#include "samba/core/interrupt.h"
#include "samba/generate/decode_session.h"

namespace samba::apps {

namespace {

struct DecodeFlags {
  std::string model;
  PromptOptions prompts;
  DecodeOptions decode;
};

nlohmann::ordered_json result_json(std::size_t index, const Prompt& prompt, const DecodeResult& result, bool text,
                                   bool logprobs) {
  nlohmann::ordered_json line;
  line["index"] = index;
  if (text && !prompt.text.empty()) line["prompt"] = prompt.text;
  if (text) line["text"] = result.text;
  line["tokens"] = result.tokens;
  if (logprobs) {
    line["logprobs"] = nlohmann::json::array();
    for (const float value : result.logprobs) line["logprobs"].push_back(static_cast<double>(value));
  }
  line["finish_reason"] = finish_reason_name(result.reason);
  return line;
}

// One token of a single prompt as it arrives.
void stream(const DecodeEvent& event, const DecodeOptions& options, bool first) {
  if (options.logprobs) {
    char line[64];
    std::snprintf(line, sizeof line, "%d\t%.6f\t", event.token, static_cast<double>(event.logprob));
    print(line + nlohmann::json(event.text).dump() + "\n");
  } else if (options.text) {
    print(event.text + (event.last ? "\n" : ""));
  } else {
    print((first ? "" : ",") + std::to_string(event.token) + (event.last ? "\n" : ""));
  }
}

void print_results(std::span<const DecodeResult> results, const DecodeOptions& options) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    print("=== prompt " + std::to_string(i) + "\n");
    bool first = true;
    if (options.text && !options.logprobs) {
      print(results[i].text + "\n");
      continue;
    }
    for (std::size_t t = 0; t < results[i].tokens.size(); ++t) {
      DecodeEvent event{i, results[i].tokens[t], options.logprobs ? results[i].logprobs[t] : 0.0F, "",
                        t + 1 == results[i].tokens.size()};
      stream(event, options, std::exchange(first, false));
    }
  }
}

int run(const DecodeFlags& flags, const CommonOptions& common) {
  DecodeOptions options = flags.decode;
  check_sampler_options(options.sampler);
  const LoadedModel model = load_model(flags.model, common);
  const std::vector<Prompt> prompts = read_prompts(flags.prompts, model, "--prompt-file");
  options.text = model.text;
  if (!options.stop.empty() && !options.text) refuse_value("--stop needs a model of the byte vocabulary");
  // Every prompt is sample 0: it gets what it would get alone.
  std::vector<DecodeRequest> requests;
  for (const Prompt& prompt : prompts) requests.push_back({prompt.tokens, 0});
  const bool streams = prompts.size() == 1 && !common.json;
  const InterruptGuard guard;
  bool first = true;
  const auto on_event = [&](const DecodeEvent& event) {
    if (streams) stream(event, options, std::exchange(first, false));
  };
  DecodeTimes times;
  const std::vector<DecodeResult> results =
      samba::decode(*model.stack, requests, options, on_event, interrupt_requested, &times);
  if (common.json) {
    for (std::size_t i = 0; i < results.size(); ++i) {
      print(json_line(result_json(i, prompts[i], results[i], options.text, options.logprobs)));
    }
  } else if (!streams) {
    print_results(results, options);
  }
  const bool interrupted = std::any_of(results.begin(), results.end(), [](const DecodeResult& result) {
    return result.reason == FinishReason::interrupted;
  });
  if (interrupted && streams) print("\n");
  if (common.progress != "never") {
    std::fprintf(
        stderr, "prompt: %lld tokens in %.3f s; generated: %lld tokens in %.3f s, %.0f tokens/s\n",
        static_cast<long long>(times.prompt_tokens), times.prefill_seconds,
        static_cast<long long>(times.generated_tokens), times.decode_seconds,
        static_cast<double>(times.generated_tokens) / (times.decode_seconds > 0.0 ? times.decode_seconds : 1.0));
  }
  return interrupted ? kInterruptedExitCode : 0;
}

}  // namespace

void add_decode_command(CLI::App& app, CommandLine& line) {
  auto flags = std::make_shared<DecodeFlags>();
  DecodeOptions& decode = flags->decode;
  CLI::App* command = app.add_subcommand("decode", "continue a prompt, token by token");
  command
      ->add_option("--model", flags->model,
                   "a .samba file, a run folder (its newest checkpoint) or a safetensors folder")
      ->required();
  command->add_option("--prompt", flags->prompts.prompts, "the text to continue (repeatable)")->allow_extra_args(false);
  command->add_option("--prompt-file", flags->prompts.file, "the text of a file; - is stdin");
  command->add_option("--prompts-file", flags->prompts.prompts_file,
                      "several prompts, one a line: text, or JSON {\"prompt\": ...} or {\"tokens\": [...]}");
  command->add_option("--tokens", flags->prompts.tokens, "a prompt as ids: 5,17,3 (repeatable)")
      ->allow_extra_args(false);
  command->add_option("--max-tokens", decode.max_tokens, "tokens to generate at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--temperature", decode.sampler.temperature, "0: the most likely token")->capture_default_str();
  command->add_option("--top-k", decode.sampler.top_k, "keep the k most likely tokens; 0: all")->capture_default_str();
  command->add_option("--top-p", decode.sampler.top_p, "keep the most likely tokens that together reach p")
      ->capture_default_str();
  command->add_option("--min-p", decode.sampler.min_p, "keep tokens of at least this part of the most likely one")
      ->capture_default_str();
  command->add_option("--repetition-penalty", decode.sampler.repetition_penalty, "1: none")->capture_default_str();
  command->add_option("--seed", decode.sampler.seed, "of the draws")->capture_default_str();
  command->add_option("--stop", decode.stop, "end before this text (repeatable)")->allow_extra_args(false);
  command->add_flag("--logprobs", decode.logprobs, "print id, log probability and text of every token");
  line.on(command, "samba decode --model runs/first --prompt \"This program is \" --temperature 0.7 --seed 1",
          [flags, &line] { return run(*flags, line.common); });
}

}  // namespace samba::apps
