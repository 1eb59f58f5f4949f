// samba prefill: one pass over a prompt: logits, hidden states, the most likely next tokens, the state behind it, or
// how well the model predicts it.

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "commands.h"
#include "mlp_commands.h"
#include "model_input.h"
#include "output.h"
#include "prefill_score.h"
#include "samba/convert/model_source.h"
#include "samba/core/error.h"
#include "samba/core/files.h"
#include "samba/formats/npy.h"
#include "samba/formats/safetensors.h"
#include "samba/generate/prefill.h"
#include "samba/generate/sampler.h"
#include "samba/generate/state_file.h"
#include "samba/train/model_kind.h"

namespace samba::apps {

namespace {

constexpr std::size_t kShownTokens = 5;
constexpr const char* kAllLayers = "all";

struct PrefillFlags {
  std::string model;
  std::string tokenizer;
  PromptOptions prompts;
  std::string logits;
  std::string hidden;
  std::string layers = kAllLayers;
  std::string save_state;
  bool score = false;
  std::string choices;
  std::string out;
  Index chunk = 0;  // 0: the call's own
  ScoreOptions scoring;
};

bool is_npy(const std::string& path) { return Path(path).extension() == ".npy"; }

void write_arrays(const ArrayMap& arrays, const std::string& path) {
  if (is_npy(path)) {
    if (arrays.size() != 1) {
      refuse_value(path + ": a .npy file holds one array, " + std::to_string(arrays.size()) +
                   " are asked for; give a .safetensors file");
    }
    return write_npy(path, arrays.begin()->second.view());
  }
  ConstArrayMap views;
  for (const auto& [name, array] : arrays) views.emplace(name, array.view());
  write_safetensors(path, views);
}

// The most likely tokens behind a prompt.
std::string next_tokens(const LoadedModel& model, std::size_t index, std::size_t prompts, const Sequence& sequence,
                        bool json) {
  const std::span<const float> last = sequence.logits;
  std::vector<std::int32_t> ids(last.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    return last[static_cast<std::size_t>(a)] > last[static_cast<std::size_t>(b)];
  });
  ids.resize(std::min(ids.size(), kShownTokens));
  nlohmann::ordered_json line{{"index", index}, {"tokens", sequence.tokens.size()}, {"next", nlohmann::json::array()}};
  std::string output;
  if (prompts > 1) output += "=== prompt " + std::to_string(index) + "\n";
  for (const std::int32_t id : ids) {
    const auto logprob = static_cast<double>(log_probability(last, id));
    nlohmann::ordered_json entry{{"token", id}, {"logprob", logprob}};
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, "%6d  %9.5f", id, logprob);
    output += buffer;
    if (model.tokenizer() != nullptr) {
      entry["text"] = token_text(*model.tokenizer(), id);
      output += "  " + entry["text"].dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    }
    line["next"].push_back(entry);
    output += "\n";
  }
  return json ? json_line(line) : output;
}

std::string pass_over(const LoadedModel& model, const std::vector<Prompt>& prompts, const PrefillFlags& flags,
                      bool json) {
  if (!flags.save_state.empty() && prompts.size() != 1) refuse_value("--save-state takes one prompt");
  PrefillOptions options;
  if (flags.chunk > 0) options.chunk = flags.chunk;
  options.logits = !flags.logits.empty();
  if (!flags.hidden.empty()) options.hidden = parse_hidden_names(model.stack->config(), flags.layers);
  const Index limit = position_limit(model.stack->config());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::string name = "prompt " + std::to_string(i);
    check_token_ids(prompts[i].tokens, model.stack->config().vocab, name);
    if (static_cast<Index>(prompts[i].tokens.size()) <= limit) continue;
    refuse_value(name + " has " + std::to_string(prompts[i].tokens.size()) + " tokens; the model has " +
                 std::to_string(limit) + " positions");
  }
  ArrayMap logits, hidden;
  std::string output;
  const bool writes = options.logits || !options.hidden.empty() || !flags.save_state.empty();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    PrefillResult result = prefill(*model.stack, prompts[i].tokens, options);
    const std::string suffix = prompts.size() == 1 ? "" : "." + std::to_string(i);
    if (options.logits) logits.emplace("logits" + suffix, std::move(result.logits));
    for (auto& [name, array] : result.hidden) hidden.emplace("hidden." + name + suffix, std::move(array));
    if (!flags.save_state.empty()) {
      save_sequence(*model.stack, result.sequence, flags.save_state);
    }
    if (!writes) output += next_tokens(model, i, prompts.size(), result.sequence, json);
  }
  if (!writes) return output;
  if (options.logits) write_arrays(logits, flags.logits);
  if (!options.hidden.empty()) write_arrays(hidden, flags.hidden);
  nlohmann::ordered_json line{{"prompts", prompts.size()}};
  for (const auto& [name, path] :
       {std::pair{"logits", flags.logits}, {"hidden", flags.hidden}, {"state", flags.save_state}}) {
    if (path.empty()) continue;
    line[name] = path;
    output += path + "\n";
  }
  return json ? json_line(line) : output;
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
  const LoadedModel model = load_model(flags.model, flags.tokenizer, common);
  if (!flags.choices.empty()) return score_choices(model, flags.choices, common);
  const std::vector<Prompt> prompts = encoded_prompts(flags.prompts, model, "--file");
  if (!flags.score) return pass_over(model, prompts, flags, common.json);
  ScoreOptions scoring = flags.scoring;
  if (flags.chunk > 0) scoring.chunk = flags.chunk;
  return score_texts(model, prompts, scoring, common);
}

int run(const PrefillFlags& flags, const CommonOptions& common) {
  const bool writes = !flags.logits.empty() || !flags.hidden.empty() || !flags.save_state.empty();
  if (flags.score && writes) refuse_value("--score excludes --logits, --hidden and --save-state");
  if (!flags.choices.empty() && (writes || flags.score)) {
    refuse_value("--choices excludes --score, --logits, --hidden and --save-state");
  }
  if (!flags.score && (flags.scoring.window != 0 || flags.scoring.stride != 0)) {
    refuse_value("--window and --stride need --score");
  }
  if (flags.hidden.empty() && flags.layers != kAllLayers) refuse_value("--layers needs --hidden");
  for (const std::string& path : {flags.logits, flags.hidden, flags.save_state, flags.out}) {
    if (!path.empty()) check_can_write(path);
  }
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
  CLI::App* command = app.add_subcommand("prefill", "one pass over a prompt: logits, next tokens, state, or a score");
  add_model_flags(command, flags->model, flags->tokenizer);
  command->add_option("--prompt", flags->prompts.prompts, "the text (repeatable)")->allow_extra_args(false);
  command->add_option("--file", flags->prompts.file, "the text of a file, - is stdin; of an MLP: a CSV file of rows");
  command->add_option("--tokens", flags->prompts.tokens, "the prompt as ids: 5,17,3 (repeatable)")
      ->allow_extra_args(false);
  command->add_option("--logits", flags->logits,
                      "write the logits (L, vocab), or (rows, 3), to this .safetensors or .npy file");
  command->add_option("--hidden", flags->hidden, "write hidden states (L, d_model) to this .safetensors or .npy file");
  command->add_option("--layers", flags->layers, "whose hidden states: 0,5,embed,final or all")->capture_default_str();
  command->add_option("--save-state", flags->save_state, "write the state behind the prompt; decode --state goes on");
  command->add_flag("--score", flags->score,
                    "log-likelihood, perplexity and bits per byte; of an MLP: loss and accuracy");
  command->add_option("--choices", flags->choices,
                      "JSON lines {\"prompt\", \"choices\", \"answer\"}: which choice is likeliest, and the accuracy");
  command->add_option("--chunk", flags->chunk, "tokens read at once; any number gives the same bits")
      ->check(at_least_one());
  command
      ->add_option("--window", flags->scoring.window,
                   "tokens after which --score starts anew; 0: as many as the model can hold")
      ->capture_default_str();
  command->add_option("--stride", flags->scoring.stride, "tokens from one window of --score to the next; 0: the window")
      ->capture_default_str();
  command->add_option("--out", flags->out, "write the result to this file");
  line.on(command, "samba prefill --model runs/first --file README.md --score",
          [flags, &line] { return run(*flags, line.common); });
}

}  // namespace samba::apps
