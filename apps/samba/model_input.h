// What decode and prefill share: the model with its text side, prompts as text or ids.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "samba/model/samba_stack.h"
#include "samba/text/model_text.h"

namespace samba::apps {

// The bytes of a file, or of stdin for "-".
std::string read_text(const std::string& path);

// A model ready for inference.
struct LoadedModel {
  std::unique_ptr<Executor> executor;
  std::unique_ptr<SambaStack> stack;
  ModelText text;

  const Tokenizer* tokenizer() const { return text.tokenizer.get(); }
};

// `path`: a checkpoint, a run folder (its newest one) or a folder of weights. `tokenizer`: the caller's, or empty.
LoadedModel load_model(const std::string& path, const std::string& tokenizer, const CommonOptions& common);

// What a path to a model may be, in the help of commands.
inline constexpr const char* kModelForms =
    "a checkpoint, a run folder (its newest one), a folder of weights (samba's or Hugging Face's) or GGUF";

// --model and --tokenizer of a command that runs a model.
void add_model_flags(CLI::App* command, std::string& model, std::string& tokenizer);

struct Prompt {
  std::optional<std::string> text;  // absent for ids
  std::vector<std::int32_t> tokens;
  std::optional<Index> max_tokens;  // of a JSON line
};

struct PromptOptions {
  std::vector<std::string> prompts;
  std::string file;
  std::string prompts_file;
  std::vector<std::string> tokens;
};

// Every prompt given, in the order --prompt, file, --prompts-file, --tokens; texts have no tokens yet. Error(value):
// ids that are none, a line that is no prompt.
std::vector<Prompt> read_prompts(const PromptOptions& options);

// read_prompts, and the tokens of texts: what the model puts before a text, and the text. Error(value): no prompt, an
// empty one, text for a model without a tokenizer. `file_flag`: the name of the flag with a file.
std::vector<Prompt> encoded_prompts(const PromptOptions& options, const LoadedModel& model,
                                    const std::string& file_flag);

// Error(value) for text where there is no tokenizer.
void require_tokenizer(const LoadedModel& model);

// "5,17,3"
std::vector<std::int32_t> parse_ids(const std::string& text);

// A token's text by itself, as valid UTF-8.
std::string token_text(const Tokenizer& tokenizer, std::int32_t id);

}  // namespace samba::apps
