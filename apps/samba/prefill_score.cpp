#include "prefill_score.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "output.h"
#include "progress.h"
#include "samba/core/error.h"
#include "samba/core/json_fields.h"

namespace samba::apps {

namespace {

// The bytes that tokens [1, n) add to the text.
std::size_t predicted_bytes(const Tokenizer& tokenizer, std::span<const std::int32_t> tokens) {
  DecodeState state;
  std::string bytes;
  std::size_t first = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!tokenizer.is_special(tokens[i])) tokenizer.decode_step(tokens[i], state, bytes);
    if (i == 0) first = bytes.size();
  }
  return bytes.size() - first;
}

std::string token_lines(const LoadedModel& model, std::size_t index, const std::vector<std::int32_t>& tokens,
                        const Score& score) {
  std::string lines;
  for (std::size_t i = 0; i < score.log_likelihood.size(); ++i) {
    nlohmann::ordered_json line{{"index", index}, {"position", i + 1}, {"token", tokens[i + 1]}};
    if (model.tokenizer() != nullptr) line["text"] = token_text(*model.tokenizer(), tokens[i + 1]);
    line["logprob"] = static_cast<double>(score.log_likelihood[i]);
    lines += json_line(line);
  }
  return lines;
}

// Bits a byte of the text that was predicted; bits a token where there is no text.
struct BitRate {
  const char* unit;
  double bits;
};
BitRate bit_rate(const LoadedModel& model, const std::vector<std::int32_t>& tokens, const Score& score) {
  if (model.tokenizer() == nullptr) return {"token", score.bits_per_token};
  const std::size_t bytes = predicted_bytes(*model.tokenizer(), tokens);
  if (bytes == 0) return {"token", score.bits_per_token};
  return {"byte", -score.total / static_cast<double>(bytes) / std::log(2.0)};
}

// ---- choices ----

struct Item {
  std::string prompt;
  std::vector<std::string> choices;
  std::optional<std::size_t> answer;
};

Item read_item(const std::string& line, const std::string& where) {
  const nlohmann::json value = parse_json(line, where);
  const JsonFields fields(value, where, {"prompt", "choices", "answer"});
  Item item;
  if (!fields.required("prompt").is_string()) fields.refuse("prompt", "a text");
  item.prompt = fields.text("prompt", "");
  const nlohmann::json& choices = fields.required("choices");
  const bool texts = choices.is_array() && !choices.empty() &&
                     std::all_of(choices.begin(), choices.end(), [](const auto& choice) { return choice.is_string(); });
  if (!texts) fields.refuse("choices", "a list of texts, at least one");
  item.choices = choices.get<std::vector<std::string>>();
  if (!fields.has("answer")) return item;
  const nlohmann::json& answer = fields.get("answer");
  if (answer.is_number_unsigned() && answer.get<std::uint64_t>() < item.choices.size()) {
    item.answer = answer.get<std::size_t>();
  } else if (answer.is_string()) {
    const auto found = std::find(item.choices.begin(), item.choices.end(), answer.get<std::string>());
    if (found != item.choices.end()) item.answer = static_cast<std::size_t>(found - item.choices.begin());
  }
  if (!item.answer) {
    fields.refuse("answer",
                  "the number of a choice, from 0 to " + std::to_string(item.choices.size() - 1) + ", or its text");
  }
  return item;
}

// Prompt and choice are encoded as one text; the choice's tokens are those behind what all of them, and the prompt
// alone, begin with.
struct Cut {
  std::vector<std::int32_t> beginning;
  std::vector<std::vector<std::int32_t>> endings;
};
Cut cut_item(const LoadedModel& model, const Item& item, const std::string& where) {
  Cut cut{model.text.prompt_tokens(item.prompt), {}};
  for (std::size_t i = 0; i < item.choices.size(); ++i) {
    if (item.choices[i].empty()) refuse_value(where + ": /choices/" + std::to_string(i) + ": must not be empty");
    cut.endings.push_back(model.text.prompt_tokens(item.prompt + item.choices[i]));
    const auto& whole = cut.endings.back();
    const auto [end, other] = std::mismatch(cut.beginning.begin(), cut.beginning.end(), whole.begin(), whole.end());
    static_cast<void>(other);
    cut.beginning.erase(end, cut.beginning.end());
  }
  for (auto& ending : cut.endings) {
    if (ending.size() == cut.beginning.size()) cut.beginning.pop_back();
  }
  if (cut.beginning.empty()) refuse_value(where + ": /prompt: must have a token in front of the choices");
  for (auto& ending : cut.endings) {
    ending.erase(ending.begin(), ending.begin() + static_cast<std::ptrdiff_t>(cut.beginning.size()));
  }
  return cut;
}

std::size_t likeliest(const std::vector<double>& scores) {
  return static_cast<std::size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

struct Tally {
  std::size_t items = 0;
  std::size_t answered = 0;  // items that say what is right
  std::size_t correct = 0;
  std::size_t correct_per_byte = 0;
};

nlohmann::ordered_json judge(const LoadedModel& model, const Item& item, const std::string& where, Tally& tally) {
  const Cut cut = cut_item(model, item, where);
  std::vector<double> scores, per_byte;
  for (const auto& likelihoods : samba::score_endings(*model.stack, cut.beginning, cut.endings)) {
    double total = 0.0;
    for (const float value : likelihoods) total += static_cast<double>(value);
    per_byte.push_back(total / static_cast<double>(item.choices[scores.size()].size()));
    scores.push_back(total);
  }
  const std::size_t pick = likeliest(scores), pick_per_byte = likeliest(per_byte);
  nlohmann::ordered_json line{{"index", tally.items++},
                              {"log_likelihood", scores},
                              {"per_byte", per_byte},
                              {"pick", pick},
                              {"pick_per_byte", pick_per_byte}};
  if (!item.answer) return line;
  ++tally.answered;
  tally.correct += pick == *item.answer ? 1 : 0;
  tally.correct_per_byte += pick_per_byte == *item.answer ? 1 : 0;
  line["answer"] = *item.answer;
  line["correct"] = pick == *item.answer;
  return line;
}

double share(std::size_t part, std::size_t all) {
  return all == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(all);
}

}  // namespace

std::string score_texts(const LoadedModel& model, const std::vector<Prompt>& prompts, const ScoreOptions& options,
                        const CommonOptions& common) {
  std::string output;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<std::int32_t>& tokens = prompts[i].tokens;
    Progress progress(common.progress, "score", "tokens", 0, tokens.size());
    const Score score = score_tokens(*model.stack, tokens, options, [&](std::size_t done) { progress.update(done); });
    const BitRate rate = bit_rate(model, tokens, score);
    if (common.json) {
      output += token_lines(model, i, tokens, score);
      output += json_line({{"index", i},
                           {"tokens", tokens.size()},
                           {"log_likelihood", score.total},
                           {"perplexity", score.perplexity},
                           {std::string("bits_per_") + rate.unit, rate.bits}});
      continue;
    }
    char buffer[256];
    std::snprintf(buffer, sizeof buffer, "tokens: %zu\nlog-likelihood: %.6f\nperplexity: %.6f\nbits per %s: %.6f\n",
                  tokens.size(), score.total, score.perplexity, rate.unit, rate.bits);
    if (prompts.size() > 1) output += "=== prompt " + std::to_string(i) + "\n";
    output += buffer;
  }
  return output;
}

std::string score_choices(const LoadedModel& model, const std::string& file, const CommonOptions& common) {
  require_tokenizer(model);
  std::vector<std::pair<Item, std::string>> items;
  std::stringstream lines(read_text(file));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::string where = file + ":" + std::to_string(number);
    if (line.find_first_not_of(" \t\r") != std::string::npos) items.emplace_back(read_item(line, where), where);
  }
  if (items.empty()) {
    refuse_value("--choices: " + file + " has no line; one is {\"prompt\": ..., \"choices\": [...], \"answer\": 0}");
  }
  Progress progress(common.progress, "choices", "items", 0, items.size());
  Tally tally;
  std::string output;
  for (const auto& [item, where] : items) {
    const nlohmann::ordered_json line = judge(model, item, where, tally);
    if (common.json) output += json_line(line);
    progress.update(tally.items);
  }
  progress.finish();
  const double accuracy = share(tally.correct, tally.answered);
  const double accuracy_per_byte = share(tally.correct_per_byte, tally.answered);
  if (common.json) {
    return output + json_line({{"items", tally.items},
                               {"answered", tally.answered},
                               {"correct", tally.correct},
                               {"accuracy", accuracy},
                               {"accuracy_per_byte", accuracy_per_byte}});
  }
  char buffer[160];
  std::snprintf(buffer, sizeof buffer,
                "accuracy: %.4f (%zu of %zu)\naccuracy by log-likelihood a byte: %.4f (%zu of %zu)\n", accuracy,
                tally.correct, tally.answered, accuracy_per_byte, tally.correct_per_byte, tally.answered);
  return buffer;
}

}  // namespace samba::apps
