#include "samba/convert/initial_model.h"

#include "samba/convert/gguf_vocabulary.h"
#include "samba/convert/model_source.h"
#include "samba/core/error.h"
#include "samba/numerics/float32.h"
#include "samba/text/model_text.h"

namespace samba {

namespace {

std::unique_ptr<SambaStack> load_for_fine_tuning(Executor& executor, const StackConfig& config,
                                                 const OpenModel& model) {
  auto stack = std::make_unique<SambaStack>(executor, config);
  for (std::size_t i = 0; i < model.tensors.size(); ++i) {
    const ModelTensor& tensor = model.tensors[i];
    const Array values = floats_of(tensor);
    for (std::size_t element = 0; element < values.floats().size(); ++element) {
      if (is_finite(values.floats()[element])) continue;
      refuse_corrupt("weights_finite",
                     tensor.source + ": element " + std::to_string(element) + " of " + tensor.name + " is not finite");
    }
    executor.memory().copy_to_device(stack->mutable_device_parameters() + stack->registry().tensors()[i].offset,
                                     values.data(), values.byte_size());
    if (tensor.drop) tensor.drop();
  }
  stack->parameters_changed();
  return stack;
}

InitialModel open_initial_model(const Path& path) {
  const ModelPlace place = find_model(path);
  InitialModel initial;
  initial.config = open_model(place).state.config;
  const ModelText text = read_model_text(place.path, initial.config.vocab);
  if (text.tokenizer != nullptr && text.source != "bytes") {
    initial.tokenizer = std::filesystem::absolute(text.source).lexically_normal().string();
  }
  initial.load = [place](Executor& executor, const StackConfig& config) {
    return load_for_fine_tuning(executor, config, open_model(place));
  };
  return initial;
}

std::vector<NamedFile> gguf_tokenizer_files(const Path& gguf) {
  std::vector<NamedFile> files;
  for (const MadeFile& file : tokenizer_files_of_gguf(std::make_shared<const GgufFile>(gguf))) {
    files.push_back({file.name, file.content()});
  }
  return files;
}

}  // namespace

ModelOpener model_opener() { return {open_initial_model, gguf_tokenizer_files}; }

}  // namespace samba
