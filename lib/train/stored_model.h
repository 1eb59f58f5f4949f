// A model as files hold it, whichever of the forms they have, in host memory: what `samba convert` and `samba inspect`
// work on.
//
//   streamed archive    of a Samba stack in training (docs/formats/checkpoint.md)
//   legacy JSON         its older form, read only
//   samba.stack.v1      any stack (docs/formats/stack.md)
//   safetensors folder  config.json and safetensors files (docs/formats/model_folder.md)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "samba/core/files.h"
#include "samba/formats/stack_tensor.h"
#include "samba/numerics/packed_weight.h"
#include "samba/train/model_state.h"

namespace samba {

// The last three are forms of other programs, which samba/convert/model_source.h reads.
enum class ModelForm {
  samba_archive,
  legacy_json,
  stack_archive,
  folder,
  huggingface_folder,
  mamba_ssm_folder,
  gguf_file
};

std::string_view model_form_name(ModelForm form);  // "streamed archive", "legacy JSON", ...

struct StoredModel {
  ModelForm form = ModelForm::stack_archive;
  std::uint64_t file_bytes = 0;  // of all files
  nlohmann::json description;    // the state as the form holds it
  ModelState state;
  bool trainable = false;            // the files hold what training needs, whether it was read or not
  std::vector<StackTensor> tensors;  // the parameters in registry order, as they are stored
  WeightMap weights;                 // by registry name
  ArrayMap moments;                  // "exp_avg.NAME", "exp_avg_sq.NAME", "buf_initialized"; empty without training

  WeightFormat format() const { return weight_format(ConstWeightMap(weights)); }
};

enum class Reading {
  everything,  // moments, optimizer, schedule and random stream where the form has them, checked as for training
  inference,   // configuration and weights
};

// Everything that is read is verified. A folder is one of the forms, a run folder is not (find_checkpoint). Refusals as
// in checkpoint.h.
StoredModel read_model(const Path& path, Reading reading);

// The form in which `model` goes into a file: the Samba archive where that can hold it, else samba.stack.v1.
ModelForm file_form(const StoredModel& model);

// Writes the file, atomic and durable, in file_form; returns its SHA-256. A codec other than none needs samba.stack.v1.
std::string write_model_file(const StoredModel& model, const Path& path, TensorCodec codec = TensorCodec::none);

// The names of all moments of the model in the order of a file.
std::vector<std::string> moment_names(const StoredModel& model);

}  // namespace samba
