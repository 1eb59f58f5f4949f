// samba decode: continues prompts and answers in a chat, streamed.

#include <spdlog/spdlog.h>

#include <algorithm>

#include "chat_loop.h"
#include "commands.h"
#include "decode_output.h"
#include "model_input.h"
#include "samba/core/error.h"
#include "samba/core/files.h"
#include "samba/core/interrupt.h"
#include "samba/generate/state_file.h"

namespace samba::apps {

namespace {

constexpr Index kDefaultTokens = 128;
constexpr Index kDefaultAnswer = 1024;  // ends of its own accord, as a rule

struct DecodeFlags {
  std::string model;
  std::string tokenizer;
  PromptOptions prompts;
  DecodeOptions decode;
  Index max_tokens = 0;  // 0: not given
  bool chat = false;
  std::string chat_template;
  std::optional<std::string> system;
  std::string state;
  std::string save_state;

  bool has_prompt() const {
    return !prompts.prompts.empty() || !prompts.file.empty() || !prompts.prompts_file.empty() ||
           !prompts.tokens.empty();
  }
};

void check_flags(const DecodeFlags& flags) {
  check_sampler_options(flags.decode.sampler);
  if (!flags.chat && flags.system) refuse_value("--system is for --chat; a raw prompt has no roles");
  if (!flags.chat && !flags.chat_template.empty()) refuse_value("--chat-template is for --chat");
  if (flags.chat && !flags.prompts.tokens.empty()) {
    refuse_value("--chat and --tokens exclude each other: ids are a raw prompt; give the message with --prompt");
  }
  if (flags.chat && flags.system && !flags.state.empty()) {
    refuse_value("--system and --state exclude each other: the conversation in the state has begun");
  }
}

// What a run of the command works with.
struct Work {
  LoadedModel model;
  DecodeOptions options;
  std::optional<ChatTemplate> chat;
  Sequence from;  // of --state; empty without

  const Sequence* start() const { return from.tokens.empty() ? nullptr : &from; }
};

Work prepare(const DecodeFlags& flags, const CommonOptions& common) {
  Work work{load_model(flags.model, flags.tokenizer, common), flags.decode, std::nullopt, {}};
  work.options.tokenizer = work.model.tokenizer();
  work.options.end_ids = work.model.text.end_ids;
  if (!work.options.stop.empty()) require_tokenizer(work.model);
  if (flags.chat) {
    require_tokenizer(work.model);
    work.chat = flags.chat_template.empty() ? ChatTemplate::of(work.model.text)
                                            : ChatTemplate::named(flags.chat_template, work.model.text);
    if (const auto end = work.chat->end_token()) {
      work.options.end_ids.push_back(*end);
    } else {
      spdlog::warn("the tokenizer has no token that ends an answer in this chat template; --stop and --max-tokens do");
    }
  }
  if (!flags.state.empty()) {
    work.from = load_sequence(*work.model.stack, flags.state);
    if (flags.chat) drop_unread_end(work.from, work.options.end_ids);
  }
  return work;
}

// Prompts with their tokens: as the template writes them in a chat; behind a state without what begins a text.
std::vector<Prompt> prompts_of(const DecodeFlags& flags, const Work& work) {
  if (!flags.has_prompt() && work.start() != nullptr) return {Prompt()};
  if (!work.chat && work.start() == nullptr) return encoded_prompts(flags.prompts, work.model, "--prompt-file");
  std::vector<Prompt> prompts = read_prompts(flags.prompts);
  for (Prompt& prompt : prompts) {
    if (!prompt.text) continue;
    require_tokenizer(work.model);
    if (!work.chat) {
      prompt.tokens = work.model.tokenizer()->encode(*prompt.text);
    } else if (work.start() == nullptr) {
      prompt.tokens = work.chat->begin(flags.system, *prompt.text);
    } else {
      prompt.tokens = work.chat->next(*prompt.text);
    }
  }
  return prompts;
}

// A default that is not the user's gives way to the model's positions.
Index most_tokens(const DecodeFlags& flags, const Work& work, const Prompt& prompt) {
  if (prompt.max_tokens) return *prompt.max_tokens;
  if (flags.max_tokens > 0) return flags.max_tokens;
  const auto before = static_cast<Index>(prompt.tokens.size() + work.from.tokens.size());
  const Index room = position_limit(work.model.stack->config()) - before + 1;
  return std::clamp<Index>(room, 1, flags.chat ? kDefaultAnswer : kDefaultTokens);
}

int decode_prompts(const DecodeFlags& flags, Work& work, const CommonOptions& common) {
  DecodeOptions& options = work.options;
  const std::vector<Prompt> prompts = prompts_of(flags, work);
  std::vector<DecodeRequest> requests;
  for (const Prompt& prompt : prompts) {
    // Every prompt begins with sample 0: it gets what it would get alone.
    requests.push_back({prompt.tokens, 0, work.start(), most_tokens(flags, work, prompt)});
  }
  const bool one = prompts.size() == 1 && options.samples == 1;
  if (!flags.save_state.empty() && !one) refuse_value("--save-state takes one prompt and one sample");
  options.keep_sequences = !flags.save_state.empty();

  const InterruptGuard guard;
  DecodeTimes times;
  TokenPrinter tokens(options);
  ResultPrinter whole(prompts, options, common.json);
  DecodeHooks hooks;
  hooks.interrupted = interrupt_requested;
  hooks.times = &times;
  if (one && !common.json) {
    hooks.on_event = [&](const DecodeEvent& event) { tokens(event); };
  } else {
    hooks.on_result = [&](std::size_t number, const DecodeResult& result) { whole(number, result); };
  }
  std::vector<DecodeResult> results = decode(*work.model.stack, requests, options, hooks);
  tokens.end_line();
  if (!flags.save_state.empty() && results[0].sequence) {
    save_sequence(*work.model.stack, *results[0].sequence, flags.save_state);
  }
  if (common.progress != "never") print_rates(times);
  const bool interrupted = std::any_of(results.begin(), results.end(), [](const DecodeResult& result) {
    return result.reason == FinishReason::interrupted;
  });
  return interrupted ? kInterruptedExitCode : 0;
}

int converse(const DecodeFlags& flags, Work& work, const CommonOptions& common) {
  if (work.options.samples != 1) refuse_value("--n is for prompts; a conversation has one answer a turn");
  ChatSession session(*work.model.stack, *work.chat, flags.system, work.options);
  if (work.start() != nullptr) session.resume(std::move(work.from));
  const ChatLoop loop{flags.max_tokens > 0 ? flags.max_tokens : kDefaultAnswer, flags.save_state, common.json,
                      common.progress != "never"};
  return run_chat(work.model, session, work.options, loop);
}

int run(const DecodeFlags& flags, const CommonOptions& common) {
  check_flags(flags);
  if (!flags.save_state.empty()) check_can_write(flags.save_state);
  Work work = prepare(flags, common);
  if (flags.chat && !flags.has_prompt()) return converse(flags, work, common);
  return decode_prompts(flags, work, common);
}

void add_prompt_flags(CLI::App* command, DecodeFlags& flags) {
  command->add_option("--prompt", flags.prompts.prompts, "the text to continue (repeatable)")->allow_extra_args(false);
  command->add_option("--prompt-file", flags.prompts.file, "the text of a file; - is stdin");
  command->add_option("--prompts-file", flags.prompts.prompts_file,
                      "several prompts, one a line: text, or JSON {\"prompt\": ...} or {\"tokens\": [...]} with "
                      "\"max_tokens\" where it differs; - is stdin");
  command->add_option("--tokens", flags.prompts.tokens, "a prompt as ids: 5,17,3 (repeatable)")
      ->allow_extra_args(false);
  command->add_flag("--chat", flags.chat,
                    "prompts are messages in the model's chat template; without a prompt a conversation: a line of "
                    "stdin a turn");
  command->add_option("--chat-template", flags.chat_template,
                      "chatml, llama-2, llama-3, mistral, gemma, phi3 or zephyr, instead of the model's own");
  command->add_option("--system", flags.system, "the system message of a chat");
  command->add_option("--state", flags.state, "go on from this state file");
  command->add_option("--save-state", flags.save_state, "write the state behind the last token to this file");
}

void add_sampling_flags(CLI::App* command, DecodeFlags& flags) {
  DecodeOptions& decode = flags.decode;
  command
      ->add_option("--max-tokens", flags.max_tokens,
                   "tokens to generate at most (default: 128, of an answer 1024, fewer where positions end)")
      ->check(at_least_one());
  command->add_option("--temperature", decode.sampler.temperature, "0: the most likely token")->capture_default_str();
  command->add_option("--top-k", decode.sampler.top_k, "keep the k most likely tokens; 0: all")->capture_default_str();
  command->add_option("--top-p", decode.sampler.top_p, "keep the most likely tokens that together reach p")
      ->capture_default_str();
  command->add_option("--min-p", decode.sampler.min_p, "keep tokens of at least this part of the most likely one")
      ->capture_default_str();
  command->add_option("--repetition-penalty", decode.sampler.repetition_penalty, "1: none")->capture_default_str();
  command->add_option("--seed", decode.sampler.seed, "of the draws")
      ->check([](const std::string& text) { return text.starts_with('-') ? "must be at least 0, got " + text : ""; })
      ->capture_default_str();
  command->add_option("--n", decode.samples, "samples of every prompt")->check(at_least_one())->capture_default_str();
  command
      ->add_option("--batch", decode.batch, "prompts and samples decoded together at most; any number gives the same")
      ->check(at_least_one())
      ->capture_default_str();
  command->add_option("--stop", decode.stop, "end before this text (repeatable)")->allow_extra_args(false);
  command->add_flag("--logprobs", decode.logprobs, "print id, log probability and text of every token");
}

}  // namespace

void add_decode_command(CLI::App& app, CommandLine& line) {
  auto flags = std::make_shared<DecodeFlags>();
  CLI::App* command = app.add_subcommand("decode", "continue a prompt token by token, or chat");
  add_model_flags(command, flags->model, flags->tokenizer);
  add_prompt_flags(command, *flags);
  add_sampling_flags(command, *flags);
  line.on(command, "samba decode --model runs/first --prompt \"This program is \" --temperature 0.7 --seed 1",
          [flags, &line] { return run(*flags, line.common); });
}

}  // namespace samba::apps
