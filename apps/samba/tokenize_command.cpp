// samba tokenize: text to ids and pieces.

#include <cstdio>
#include <filesystem>

#include "commands.h"
#include "output.h"
#include "samba/convert/model_source.h"
#include "samba/core/error.h"
#include "samba/core/streams.h"
#include "samba/formats/gguf_metadata.h"
#include "samba/text/model_text.h"

namespace samba::apps {

namespace {

struct TokenizeFlags {
  std::string model;
  std::string tokenizer;
  std::string text;
  std::string file;
  bool text_given = false;
  bool plain = false;
  EncodeOptions encode;
};

// The tokenizer of a model, or the byte vocabulary where the model has 256 tokens.
std::shared_ptr<const Tokenizer> tokenizer_of_model(const std::string& path) {
  namespace fs = std::filesystem;
  const bool in_folder = fs::exists(Path(path) / "tokenizer.json") || fs::exists(Path(path) / "tokenizer.model");
  if (in_folder || (fs::is_regular_file(path) && is_gguf(path))) return load_tokenizer(path);
  const ModelPlace place = find_model(path);
  const Index vocabulary = open_model(place).state.config.vocab;
  const ModelText text = read_model_text(place.path, vocabulary);
  if (text.tokenizer != nullptr) return text.tokenizer;
  refuse_value("--model: the model has a vocabulary of " + std::to_string(vocabulary) +
               " tokens and no tokenizer beside it; give --tokenizer PATH");
}

std::string read_text(const TokenizeFlags& flags) {
  if (flags.text_given == !flags.file.empty()) refuse_value("give either TEXT or --file FILE (- is stdin)");
  if (flags.text_given) return flags.text;
  return read_stream(flags.file);
}

int run(const TokenizeFlags& flags, const CommonOptions& common) {
  if (flags.model.empty() == flags.tokenizer.empty()) refuse_value("give either --model PATH or --tokenizer PATH");
  const std::shared_ptr<const Tokenizer> tokenizer =
      flags.model.empty() ? load_tokenizer(flags.tokenizer) : tokenizer_of_model(flags.model);
  const std::string text = read_text(flags);
  const std::vector<std::int32_t> ids = tokenizer->encode(text, flags.encode);
  if (common.json) {
    nlohmann::ordered_json result{{"ids", ids}, {"pieces", nlohmann::json::array()}};
    for (const std::int32_t id : ids) result["pieces"].push_back(tokenizer->piece(id));
    print(json_line(result));
    return 0;
  }
  std::string lines;
  for (const std::int32_t id : ids) {
    char number[16];
    std::snprintf(number, sizeof number, "%7d  ", id);
    lines += number + json_line(tokenizer->piece(id));
  }
  print(lines);
  if (common.progress != "never") {
    std::fprintf(stderr, "%zu tokens of %zu bytes (%s, %lld pieces)\n", ids.size(), text.size(),
                 tokenizer->kind().c_str(), static_cast<long long>(tokenizer->vocabulary_size()));
  }
  return 0;
}

}  // namespace

void add_tokenize_command(CLI::App& app, CommandLine& line) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command = app.add_subcommand("tokenize", "show the token ids and pieces of a text");
  CLI::Option* text = command->add_option("TEXT", flags->text, "the text");
  command->add_option("--model", flags->model, "a model: its tokenizer, or the byte vocabulary");
  command->add_option("--tokenizer", flags->tokenizer, "a tokenizer.json, tokenizer.model or GGUF file, or a folder");
  command->add_option("--file", flags->file, "the text of a file; - is stdin");
  command->add_flag("--add-special-tokens", flags->encode.add_special_tokens,
                    "add what the model's form puts around a text (<s>, </s>)");
  command->add_flag("--plain", flags->plain, "take special tokens in the text as ordinary text");
  line.on(command, "samba tokenize --tokenizer tokenizer.json \"Hello, world\"", [flags, text, &line] {
    flags->text_given = text->count() > 0;
    flags->encode.special_in_text = !flags->plain;
    return run(*flags, line.common);
  });
}

}  // namespace samba::apps
