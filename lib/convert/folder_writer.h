// A model as a folder of safetensors files (docs/formats/model_folder.md): with the names and the config.json of
// Hugging Face transformers where one of its model types computes the same, else with samba's own.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "samba/convert/huggingface_names.h"
#include "samba/convert/open_model.h"
#include "samba/kernels/weight_rows.h"

namespace samba {

// The format a tensor is written in: float32, or the packed one of the model.
using FormatOf = std::function<WeightFormat(const ModelTensor&)>;

// What goes into a folder. Nothing is read before it is written.
struct FolderPlan {
  std::optional<HuggingFaceType> type;  // absent: samba's own names
  std::string why_none;                 // the reason for that
  FormatOf format_of;
  nlohmann::ordered_json config;
  bool carries_run = false;  // the training run that the model is of
};

// The pieces of a tensor in the format it is written in.
using PieceVisitor = std::function<void(const WeightPiece&)>;
using WeightReader = std::function<void(const ModelTensor&, const PieceVisitor&)>;

// `format` is the packed one, or float32. `wanted`: the model type that it shall be (Error(value) with the reason when
// it cannot), or empty.
FolderPlan plan_folder(const OpenModel& model, WeightFormat format, FormatOf format_of, const std::string& wanted);

// The place of a tensor: "model.safetensors/model.layers.0.mlp.gate_up_proj.weight[0:40]".
std::string folder_place(const FolderPlan& plan, const OpenModel& model, const ModelTensor& tensor);

// Vectors of a bfloat16 model that bfloat16 holds exactly: they are written so, as transformers does.
using NarrowVectors = std::vector<std::string>;  // registry names, sorted

// Writes config.json, model.safetensors, optimizer.safetensors and copies of the companions into `folder`, which is
// there and empty. `written` is told the bytes of tensors so far.
void write_folder(const FolderPlan& plan, const OpenModel& model, const WeightReader& read, const NarrowVectors& narrow,
                  const Path& folder, const std::function<void(std::uint64_t)>& written);

}  // namespace samba
