#include "model_input.h"

#include <spdlog/spdlog.h>

#include <charconv>
#include <iostream>
#include <iterator>
#include <sstream>

#include "mlp_commands.h"
#include "samba/convert/model_source.h"
#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/text/tokenizer.h"

namespace samba::apps {

std::string read_text(const std::string& path) {
  if (path != "-") return read_file(path);
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

namespace {

// One line of --prompts-file: text, or a JSON object {"prompt": "..."} or {"tokens": [...]}.
Prompt prompt_of_line(const std::string& line, const std::string& where) {
  if (!line.starts_with("{")) return {line, byte_tokens(line)};
  const nlohmann::json value = parse_json(line, where);
  const JsonFields fields(value, where, {"prompt", "tokens"});
  if (fields.has("prompt") == fields.has("tokens")) refuse_value(where + ": must have either prompt or tokens");
  if (fields.has("prompt")) {
    const std::string text = fields.text("prompt", "");
    return {text, byte_tokens(text)};
  }
  Prompt prompt;
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

LoadedModel load_model(const std::string& path, const CommonOptions& common) {
  LoadedModel model;
  const ModelPlace place = find_model(path);
  refuse_mlp(place.path, "decode", "it has no tokens to continue; samba prefill --file ROWS.csv gives its logits");
  model.executor = make_executor(common);
  model.stack = samba::load_model(*model.executor, place);
  const StackConfig& config = model.stack->config();
  model.text = config.vocab == kByteVocabulary;
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

std::vector<Prompt> read_prompts(const PromptOptions& options, const LoadedModel& model, const std::string& file_flag) {
  std::vector<Prompt> prompts;
  for (const std::string& text : options.prompts) prompts.push_back({text, byte_tokens(text)});
  if (!options.file.empty()) {
    const std::string text = read_text(options.file);
    prompts.push_back({text, byte_tokens(text)});
  }
  if (!options.prompts_file.empty()) {
    std::stringstream lines(read_text(options.prompts_file));
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (!line.empty()) prompts.push_back(prompt_of_line(line, options.prompts_file + ":" + std::to_string(number)));
    }
  }
  for (const Prompt& prompt : prompts) {
    if (!model.text && !prompt.text.empty()) {
      refuse_value("the model's vocabulary has " + std::to_string(model.stack->config().vocab) +
                   " tokens, text needs the byte vocabulary (256); give ids with --tokens");
    }
  }
  for (const std::string& ids : options.tokens) prompts.push_back({"", parse_ids(ids)});
  if (prompts.empty()) refuse_value("no prompt: give --prompt TEXT, " + file_flag + " FILE or --tokens IDS");
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].tokens.empty())
      refuse_value("prompt " + std::to_string(i) + " is empty; at least one token is needed");
  }
  return prompts;
}

}  // namespace samba::apps
