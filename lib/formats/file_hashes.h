// Digests of a model's files, kept beside them (docs/formats/hashes.md): hashes.json in a folder,
// MODEL.gguf.hashes.json beside a GGUF file. Formats of other programs have none of their own; with these a flipped bit
// is found, and the tensor that holds it is named.
#pragma once

#include <cstdint>
#include <string>

#include "samba/core/files.h"

namespace samba {

inline constexpr const char* kHashesFile = "hashes.json";

// Where the digests of this folder or file lie, or would lie.
Path hashes_path(const Path& model);

// Writes them for what is there now: every file of a folder that belongs to a model (weights, JSON, tokenizers), each
// tensor of safetensors, PyTorch and GGUF files. Returns their path.
Path write_hashes(const Path& model);

struct HashesChecked {
  bool present = false;  // whether there are digests; without them nothing was compared
  std::uint64_t files = 0;
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

enum class HashedFiles { all, weights };

// Compares. Error(corrupt) of the class "hashes" for a tensor or a file that differs, is missing or is not listed; the
// message names it.
HashesChecked check_hashes(const Path& model, HashedFiles files = HashedFiles::all);

}  // namespace samba
