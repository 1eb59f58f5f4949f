// A stack in training as a folder of safetensors files, without loss (docs/formats/model_folder.md):
//
//   config.json             {"format": "samba.folder.v1", "state": the state of the archive's header}
//   model.safetensors       the parameters by their registry names
//   optimizer.safetensors   "exp_avg.NAME", "exp_avg_sq.NAME" and "buf_initialized"
#pragma once

#include <string>
#include <vector>

#include "samba/core/files.h"

namespace samba {

// What was mapped to what, for the user.
using MappedNames = std::vector<std::pair<std::string, std::string>>;

// The whole archive is verified before anything is written. `folder` must not exist, or be empty. With `dry_run`
// nothing is written.
MappedNames archive_to_folder(const Path& archive, const Path& folder, bool dry_run);

// Refused: a file, tensor or field that is missing or too many, another shape or dtype, a value that is not finite
// (Error(corrupt)); the message names it.
MappedNames folder_to_archive(const Path& folder, const Path& archive, bool dry_run);

bool is_model_folder(const Path& folder);

}  // namespace samba
