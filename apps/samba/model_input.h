// What decode and prefill share: the model, prompts as text or ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "samba/model/samba_stack.h"

namespace samba::apps {

// The bytes of a file, or of stdin for "-".
std::string read_text(const std::string& path);

// A model ready for inference: a .samba file or a run folder (its newest checkpoint).
struct LoadedModel {
  std::unique_ptr<Executor> executor;
  std::unique_ptr<SambaStack> stack;
  bool text = false;  // tokens are bytes
};

LoadedModel load_model(const std::string& path, const CommonOptions& common);

struct Prompt {
  std::string text;  // empty for ids
  std::vector<std::int32_t> tokens;
};

struct PromptOptions {
  std::vector<std::string> prompts;
  std::string file;
  std::string prompts_file;
  std::vector<std::string> tokens;
};

// Every prompt given, in the order --prompt, file, --prompts-file, --tokens. Text is refused for a model whose tokens
// are not bytes. Error(value): no prompt, an empty one, ids that are none.
std::vector<Prompt> read_prompts(const PromptOptions& options, const LoadedModel& model, const std::string& file_flag);

// "5,17,3"
std::vector<std::int32_t> parse_ids(const std::string& text);

}  // namespace samba::apps
