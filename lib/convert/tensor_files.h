// The tensors of a folder of Hugging Face transformers or mamba_ssm, wherever its files keep them: model.safetensors,
// several files and model.safetensors.index.json, pytorch_model.bin, or several of them and their index.
//
// Refusals: Error(corrupt) for damaged files (the classes of their formats), and of the class "index" for an index that
// does not fit its files: a missing file, a name outside of the folder, a tensor that is missing, unlisted or twice.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "samba/core/array.h"
#include "samba/core/files.h"
#include "samba/core/mapped_file.h"

namespace samba {

struct FileTensor {
  std::string file;  // "model-00001-of-00002.safetensors"
  ConstArray view;   // into the mapped file; need not be aligned
  std::shared_ptr<const MappedFile> mapped;
};

struct TensorFiles {
  std::map<std::string, FileTensor> tensors;
  std::uint64_t bytes = 0;
};

// True when the folder has one of the files above.
bool has_tensor_files(const Path& folder);

TensorFiles open_tensor_files(const Path& folder);

}  // namespace samba
