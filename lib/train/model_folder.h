// A model as a folder of safetensors files (docs/formats/model_folder.md):
//
//   config.json             {"format": "samba.folder.v1", "state": the state of the file that holds the same}
//   model.safetensors       the parameters by their registry names; packed ones as NAME.bits, or NAME.codes and
//                           NAME.exponents
//   optimizer.safetensors   "exp_avg.NAME", "exp_avg_sq.NAME" and "buf_initialized", when it can be trained on
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "samba/core/files.h"
#include "samba/kernels/executor.h"
#include "samba/model/samba_stack.h"
#include "samba/train/stored_model.h"

namespace samba {

// A folder that holds a file model.safetensors.
bool is_model_folder(const Path& folder);

// Refused: a file, tensor or field that is missing or too many, another shape or dtype, a value that is not finite
// (Error(corrupt)); the message names it.
StoredModel read_model_folder(const Path& folder, Reading reading);

// `folder` must not exist, or be empty: check_new_folder. It appears whole or not at all.
void write_model_folder(const StoredModel& model, const Path& folder);
// Error(value) for a folder that cannot be written.
void check_new_folder(const Path& folder);
// Makes a folder that appears whole or not at all: `fill` writes its files to the path it is given.
void write_new_folder(const Path& folder, const std::function<void(const Path&)>& fill);

std::unique_ptr<SambaStack> load_folder_for_inference(Executor& executor, const Path& folder);

}  // namespace samba
