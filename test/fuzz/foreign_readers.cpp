// Files of other programs.
#include <algorithm>
#include <cstring>
#include <memory>

#include "fuzz/readers.h"
#include "samba/convert/folder_model.h"
#include "samba/convert/gguf_model.h"
#include "samba/convert/model_source.h"
#include "samba/formats/gguf_file.h"
#include "samba/formats/safetensors.h"
#include "samba/formats/torch_file.h"
#include "samba/text/gguf_tokenizer.h"
#include "samba/text/model_text.h"

namespace samba::fuzz {

namespace {

// Reads every byte of the views, which must lie in the input.
void check_views(const ConstArrayMap& tensors, Bytes input) {
  for (const auto& [name, tensor] : tensors) {
    const auto bytes = static_cast<std::size_t>(tensor.size()) * dtype_size(tensor.dtype);
    if (bytes == 0) continue;
    const auto* data = static_cast<const std::byte*>(tensor.data);
    expect(data >= input.data() && data <= input.data() + input.size() &&
               bytes <= static_cast<std::size_t>(input.data() + input.size() - data),
           "a tensor lies in its file");
  }
}

void load_all(const OpenModel& model) {
  for (const ModelTensor& tensor : model.tensors) {
    accepts([&] { expect(floats_of(tensor).shape() == tensor.shape, "a tensor has the shape it was told to have"); });
  }
}

}  // namespace

void read_safetensors_file(Bytes input) {
  const SafetensorsIndex index = index_safetensors(input, "input");
  check_views(index.tensors, input);
  const SafetensorsFile file = parse_safetensors(input, "input");
  expect(file.tensors.size() == index.tensors.size() && file.metadata == index.metadata, "both readers agree");
  std::string written = safetensors_header(ConstArrayMap(file.tensors.begin(), file.tensors.end()), file.metadata);
  expect(!written.empty(), "what was read can be written");
}

void read_gguf_file(Bytes input) {
  const Path path = file_with(input);
  const GgufFile file(path);
  for (const GgufTensor& tensor : file.tensors()) {
    const Bytes all = file.file().bytes();
    expect(tensor.bytes.data() >= all.data() && tensor.bytes.size() <= all.size() &&
               static_cast<std::size_t>(tensor.bytes.data() - all.data()) <= all.size() - tensor.bytes.size(),
           "a tensor lies in its file");
  }
  accepts([&] {
    const std::unique_ptr<Tokenizer> tokenizer = read_gguf_tokenizer(file.metadata(), "input");
    tokenizer->decode(tokenizer->encode("a text, <s> of two\n words"));
  });
  load_all(open_gguf(path));
}

void read_torch_pickle(Bytes input) { check_views(index_torch_file(input, "input"), input); }

// The first byte says which file of a folder the rest is; the others are sound.
void read_foreign_folder(Bytes input) {
  static const std::vector<std::string> names{"config.json",
                                              "model.safetensors",
                                              "tokenizer_config.json",
                                              "generation_config.json",
                                              "model.safetensors.index.json",
                                              "tokenizer.json",
                                              "chat_template.jinja",
                                              "optimizer.safetensors"};
  if (input.empty()) return;
  static const Path sound = Path(SAMBA_SOURCE_DIR) / "test/huggingface/folders/llama";
  static const Path folder = scratch_folder() / "folder";
  std::filesystem::create_directories(folder);
  const std::string& name = names[static_cast<std::size_t>(input[0]) % names.size()];
  for (const std::string& other : names) std::filesystem::remove(folder / other);
  for (const char* other : {"config.json", "model.safetensors"}) {
    if (name != other) std::filesystem::copy_file(sound / other, folder / other);
  }
  file_with(input.subspan(1), "folder/" + name);
  accepts([&] { read_model_text(folder, 61); });
  load_all(open_model(find_model(folder), Reading::everything));
}

}  // namespace samba::fuzz
