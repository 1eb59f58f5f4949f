// A model that a run begins from instead of drawn initial values, and the files of a tokenizer that lies in a GGUF
// file. What opens them stands a floor above (samba/convert/initial_model.h) and is handed to the run.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "samba/core/files.h"
#include "samba/kernels/executor.h"
#include "samba/model/samba_stack.h"

namespace samba {

struct InitialModel {
  StackConfig config;
  // The file or folder of its tokenizer; empty: none, or bytes.
  std::string tokenizer;
  // A stack for training with its values in float32; those of a packed form are expanded exactly. `config` has the
  // tensors of the model's own. Error(corrupt) for a value that is not finite.
  std::function<std::unique_ptr<SambaStack>(Executor& executor, const StackConfig& config)> load;
};

struct NamedFile {
  std::string name;  // "tokenizer.json"
  std::string content;
};

struct ModelOpener {
  // Error(value, unsupported, corrupt) for a path that holds no model.
  std::function<InitialModel(const Path& path)> open;
  // tokenizer.json and the files that go with it; empty when the GGUF file has no tokenizer.
  std::function<std::vector<NamedFile>(const Path& gguf)> tokenizer_files;
};

}  // namespace samba
