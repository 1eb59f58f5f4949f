#include "model_input.h"

#include <spdlog/spdlog.h>

#include <charconv>
#include <sstream>

#include "mlp_commands.h"
#include "samba/convert/model_source.h"
#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/core/streams.h"

namespace samba::apps {

std::string read_text(const std::string& path) { return read_stream(path); }

namespace {

// One line of --prompts-file: text, or a JSON object {"prompt": "..."} or {"tokens": [...]}.
Prompt prompt_of_line(const std::string& line, const std::string& where) {
  Prompt prompt;
  if (!line.starts_with("{")) {
    prompt.text = line;
    return prompt;
  }
  const nlohmann::json value = parse_json(line, where);
  const JsonFields fields(value, where, {"prompt", "tokens", "max_tokens"});
  if (fields.has("prompt") == fields.has("tokens")) refuse_value(where + ": must have either prompt or tokens");
  if (fields.has("max_tokens")) prompt.max_tokens = fields.integer("max_tokens", std::nullopt, 1);
  if (fields.has("prompt")) {
    prompt.text = fields.text("prompt", "");
    return prompt;
  }
  const nlohmann::json& tokens = fields.get("tokens");
  if (!tokens.is_array()) fields.refuse("tokens", "a list of token ids");
  for (const nlohmann::json& token : tokens) {
    if (!token.is_number_unsigned() || token.get<std::uint64_t>() > 0x7FFFFFFFU)
      fields.refuse("tokens", "a list of token ids");
    prompt.tokens.push_back(token.get<std::int32_t>());
  }
  return prompt;
}

}  // namespace

void add_model_flags(CLI::App* command, std::string& model, std::string& tokenizer) {
  command->add_option("--model", model, kModelForms)->required();
  command->add_option("--tokenizer", tokenizer, "tokenizer.json, tokenizer.model, GGUF or a folder");
}

LoadedModel load_model(const std::string& path, const std::string& tokenizer, const CommonOptions& common) {
  LoadedModel model;
  const ModelPlace place = find_model(path);
  refuse_mlp(place.path, "decode", "it has no tokens to continue; samba prefill --file ROWS.csv gives its logits");
  model.executor = make_executor(common);
  model.stack = samba::load_model(*model.executor, place);
  const StackConfig& config = model.stack->config();
  model.text = read_model_text(place.path, config.vocab, tokenizer);
  if (const Index declared = unreachable_positions(config); declared > 0) {
    spdlog::warn("the model declares {} positions, its rotary angles reach {}; a longer sequence is refused", declared,
                 position_limit(config));
  }
  return model;
}

std::vector<std::int32_t> parse_ids(const std::string& text) {
  std::vector<std::int32_t> ids;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), id);
    if (error != std::errc{} || end != part.data() + part.size() || id < 0) {
      refuse_value("--tokens: must be ids separated by commas, for example 5,17,3; got \"" + text + "\"");
    }
    ids.push_back(id);
  }
  return ids;
}

std::vector<Prompt> read_prompts(const PromptOptions& options) {
  std::vector<Prompt> prompts;
  const auto add_text = [&](const std::string& text) { prompts.emplace_back().text = text; };
  for (const std::string& text : options.prompts) add_text(text);
  if (!options.file.empty()) add_text(read_text(options.file));
  if (!options.prompts_file.empty()) {
    std::stringstream lines(read_text(options.prompts_file));
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (!line.empty()) prompts.push_back(prompt_of_line(line, options.prompts_file + ":" + std::to_string(number)));
    }
  }
  for (const std::string& ids : options.tokens) prompts.emplace_back().tokens = parse_ids(ids);
  return prompts;
}

void require_tokenizer(const LoadedModel& model) {
  if (model.tokenizer() != nullptr) return;
  refuse_value("the model's vocabulary has " + std::to_string(model.stack->config().vocab) +
               " tokens, and no tokenizer is beside it; give --tokenizer PATH, or ids with --tokens");
}

std::vector<Prompt> encoded_prompts(const PromptOptions& options, const LoadedModel& model,
                                    const std::string& file_flag) {
  std::vector<Prompt> prompts = read_prompts(options);
  if (prompts.empty()) refuse_value("no prompt: give --prompt TEXT, " + file_flag + " FILE or --tokens IDS");
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].text) {
      require_tokenizer(model);
      prompts[i].tokens = model.text.prompt_tokens(*prompts[i].text);
    }
    if (prompts[i].tokens.empty())
      refuse_value("prompt " + std::to_string(i) + " is empty; at least one token is needed");
  }
  return prompts;
}

std::string token_text(const Tokenizer& tokenizer, std::int32_t id) {
  // Behind a first token, so that a space at its start stays.
  DecodeState state{.begun = true, .stripped = 0, .stripping = false};
  std::string bytes;
  tokenizer.decode_step(id, state, bytes);
  Utf8Stream utf8;
  return utf8.push(bytes) + utf8.finish();
}

}  // namespace samba::apps
