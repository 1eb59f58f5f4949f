// samba prefill: one pass over a prompt: logits, the most likely next tokens, or how well the model predicts it.

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "commands.h"
#include "mlp_commands.h"
#include "model_input.h"
#include "output.h"
#include "progress.h"
#include "samba/convert/model_source.h"
#include "samba/core/error.h"
#include "samba/core/files.h"
#include "samba/formats/safetensors.h"
#include "samba/generate/sampler.h"
#include "samba/generate/scoring.h"
#include "samba/text/tokenizer.h"
#include "samba/train/model_kind.h"

namespace samba::apps {

namespace {

constexpr std::size_t kShownTokens = 5;

struct PrefillFlags {
  std::string model;
  PromptOptions prompts;
  std::string logits;
  bool score = false;
  std::string out;
  ScoreOptions scoring;
};

Array logits_of(SambaStack& stack, const Prompt& prompt) {
  const auto length = static_cast<Index>(prompt.tokens.size());
  const Array logits = stack.forward(ConstArray{DType::int32, {1, length}, prompt.tokens.data()});
  return Array::from_floats({length, stack.config().vocab}, logits.floats());
}

void write_logits(SambaStack& stack, std::span<const Prompt> prompts, const std::string& path) {
  ArrayMap arrays;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    arrays.emplace(prompts.size() == 1 ? "logits" : "logits." + std::to_string(i), logits_of(stack, prompts[i]));
  }
  ConstArrayMap views;
  for (const auto& [name, array] : arrays) views.emplace(name, array.view());
  write_safetensors(path, views);
}

// The most likely tokens behind each prompt.
std::string next_tokens(SambaStack& stack, std::span<const Prompt> prompts, bool text, bool json) {
  std::string output;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Array logits = logits_of(stack, prompts[i]);
    const std::span<const float> last = logits.floats().last(static_cast<std::size_t>(stack.config().vocab));
    std::vector<std::int32_t> ids(last.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
      return last[static_cast<std::size_t>(a)] > last[static_cast<std::size_t>(b)];
    });
    ids.resize(std::min(ids.size(), kShownTokens));
    nlohmann::ordered_json line{{"index", i}, {"tokens", prompts[i].tokens.size()}, {"next", nlohmann::json::array()}};
    if (!json && prompts.size() > 1) output += "=== prompt " + std::to_string(i) + "\n";
    for (const std::int32_t id : ids) {
      const auto logprob = static_cast<double>(log_probability(last, id));
      const std::int32_t one[] = {id};
      Utf8Stream utf8;
      const std::string piece = utf8.push(byte_text(one)) + utf8.finish();
      nlohmann::ordered_json entry{{"token", id}, {"logprob", logprob}};
      if (text) entry["text"] = piece;
      line["next"].push_back(entry);
      char buffer[64];
      std::snprintf(buffer, sizeof buffer, "%6d  %9.5f", id, logprob);
      if (!json) output += std::string(buffer) + (text ? "  " + nlohmann::json(piece).dump() : "") + "\n";
    }
    if (json) output += json_line(line);
  }
  return output;
}

std::string scores(SambaStack& stack, std::span<const Prompt> prompts, const PrefillFlags& flags, bool text,
                   const CommonOptions& common) {
  std::string output;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<std::int32_t>& tokens = prompts[i].tokens;
    Progress progress(common.progress, "score", "tokens", 0, tokens.size());
    const Score score = score_tokens(stack, tokens, flags.scoring, [&](std::size_t done) { progress.update(done); });
    if (common.json) {
      nlohmann::ordered_json line{{"index", i},
                                  {"tokens", tokens.size()},
                                  {"log_likelihood", score.total},
                                  {"perplexity", score.perplexity},
                                  {text ? "bits_per_byte" : "bits_per_token", score.bits_per_token}};
      line["token_log_likelihood"] = nlohmann::json::array();
      for (const float value : score.log_likelihood) line["token_log_likelihood"].push_back(static_cast<double>(value));
      output += json_line(line);
      continue;
    }
    char buffer[256];
    std::snprintf(buffer, sizeof buffer, "tokens: %zu\nlog-likelihood: %.6f\nperplexity: %.6f\nbits per %s: %.6f\n",
                  tokens.size(), score.total, score.perplexity, text ? "byte" : "token", score.bits_per_token);
    if (prompts.size() > 1) output += "=== prompt " + std::to_string(i) + "\n";
    output += buffer;
  }
  return output;
}

// Rows through an MLP; text and ids are nothing to it.
std::string rows_of(const Path& model, const PrefillFlags& flags, const CommonOptions& common) {
  if (!flags.prompts.prompts.empty() || !flags.prompts.tokens.empty()) {
    refuse_value("an MLP takes rows of 8 features (--file ROWS.csv), not --prompt or --tokens");
  }
  return prefill_mlp(model, {flags.prompts.file, flags.logits, flags.score}, common);
}

std::string result_of(const PrefillFlags& flags, const CommonOptions& common) {
  const Path path = find_model(flags.model).path;
  if (model_kind_of_file(path) == ModelKind::mlp) return rows_of(path, flags, common);
  const LoadedModel model = load_model(flags.model, common);
  const std::vector<Prompt> prompts = read_prompts(flags.prompts, model, "--file");
  if (flags.score) return scores(*model.stack, prompts, flags, model.text, common);
  if (flags.logits.empty()) return next_tokens(*model.stack, prompts, model.text, common.json);
  write_logits(*model.stack, prompts, flags.logits);
  return common.json ? json_line({{"logits", flags.logits}, {"prompts", prompts.size()}}) : flags.logits + "\n";
}

int run(const PrefillFlags& flags, const CommonOptions& common) {
  if (flags.score && !flags.logits.empty()) refuse_value("--score and --logits exclude each other");
  const std::string output = result_of(flags, common);
  if (flags.out.empty()) {
    print(output);
  } else {
    write_file_atomically(flags.out, output);
  }
  return 0;
}

}  // namespace

void add_prefill_command(CLI::App& app, CommandLine& line) {
  auto flags = std::make_shared<PrefillFlags>();
  CLI::App* command = app.add_subcommand("prefill", "one pass over a prompt: logits, next tokens, or a score");
  command
      ->add_option("--model", flags->model,
                   "a .samba file, a run folder (its newest checkpoint) or a safetensors folder")
      ->required();
  command->add_option("--prompt", flags->prompts.prompts, "the text (repeatable)")->allow_extra_args(false);
  command->add_option("--file", flags->prompts.file, "the text of a file, - is stdin; of an MLP: a CSV file of rows");
  command->add_option("--tokens", flags->prompts.tokens, "the prompt as ids: 5,17,3 (repeatable)")
      ->allow_extra_args(false);
  command->add_option("--logits", flags->logits, "write the logits (L, vocab), or (rows, 3), to this safetensors file");
  command->add_flag("--score", flags->score,
                    "log-likelihood, perplexity and bits per byte; of an MLP: loss and accuracy");
  command->add_option("--chunk", flags->scoring.chunk, "tokens read at once by --score; any number gives the same bits")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--context", flags->scoring.context,
                   "tokens after which --score starts anew; 0: as many as the model can hold")
      ->capture_default_str();
  command->add_option("--out", flags->out, "write the result to this file");
  line.on(command, "samba prefill --model runs/first --file README.md --score",
          [flags, &line] { return run(*flags, line.common); });
}

}  // namespace samba::apps
