// A model as a folder of safetensors files (docs/formats/model_folder.md):
//
//   config.json             {"format": "samba.folder.v1", "state": the state of the file that holds the same}
//   model.safetensors       the parameters by their registry names; packed ones as NAME.bits, or NAME.codes and
//                           NAME.exponents
//   optimizer.safetensors   "exp_avg.NAME", "exp_avg_sq.NAME" and "buf_initialized", when it can be trained on
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "samba/core/files.h"
#include "samba/core/mapped_file.h"
#include "samba/kernels/executor.h"
#include "samba/model/samba_stack.h"
#include "samba/train/stored_model.h"

namespace samba {

// A folder that holds a file model.safetensors.
bool is_model_folder(const Path& folder);

// Refused: a file, tensor or field that is missing or too many, another shape or dtype, a value that is not finite
// (Error(corrupt)); the message names it.
StoredModel read_model_folder(const Path& folder, Reading reading);

// The same with every tensor where it lies in its mapped file. Null when one of them is not aligned for its type.
// Whether values are finite is for the caller to look at.
struct MappedFolder {
  std::uint64_t file_bytes = 0;  // of all files
  nlohmann::json description;    // the state of config.json
  ModelState state;
  bool trainable = false;
  MappedFile model, optimizer;
  ConstWeightMap weights;  // of the registry
  ConstArrayMap moments;   // when they were asked for
};
std::shared_ptr<const MappedFolder> map_model_folder(const Path& folder, Reading reading);

inline constexpr const char* kFolderFormat = "samba.folder.v1";

// Error(value) for a folder that cannot be written: one that is there and not empty.
void check_new_folder(const Path& folder);
// Makes a folder that appears whole or not at all: `fill` writes its files to the path it is given.
void write_new_folder(const Path& folder, const std::function<void(const Path&)>& fill);

// The state of a folder's config.json, in either of its forms, checked. `formats`: the packed dtypes of the weights;
// `moments`: whether there is a file optimizer.safetensors.
ModelState read_folder_state(const nlohmann::json& state, const std::string& source, Reading reading,
                             std::span<const DType> formats, bool moments);
// What such a config.json tells of a model whose weights have this format.
nlohmann::json folder_state_json(const ModelState& state, WeightFormat format);

std::unique_ptr<SambaStack> load_folder_for_inference(Executor& executor, const Path& folder);

}  // namespace samba
