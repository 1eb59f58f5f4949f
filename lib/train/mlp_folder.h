// The small MLP as a folder of safetensors files (docs/formats/mlp_checkpoint.md):
//
//   config.json             {"format": "samba.mlp_folder.v1", "weight_format", and what the checkpoint has beside its
//                           tensors; of a run's checkpoint "run"}
//   metrics.jsonl           of that run
//   model.safetensors       weight1, bias1, weight2, bias2; packed ones as NAME.bits, or NAME.codes and NAME.exponents
//   optimizer.safetensors   exp_avg and exp_avg_sq (195 values each); none when the weights are packed
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "samba/core/files.h"
#include "samba/numerics/packed_weight.h"
#include "samba/train/mlp_checkpoint.h"

namespace samba {

bool is_mlp_folder(const Path& path);

// What the folder of a run tells of itself, so that the run can go on (convert/folder_run.h).
struct MlpRunRecord {
  nlohmann::json run;   // null: none
  std::string metrics;  // of the steps so far
};

// `folder` must not exist, or be empty. Packed weights (bfloat16, int8) are for inference: the moments stay behind, and
// the run.
void write_mlp_folder(const MlpState& state, WeightFormat format, const Path& folder, const MlpRunRecord& record = {});
// Error(corrupt) for what is missing, too many or of another shape; Error(unsupported) for packed weights, which have
// no state to train on.
// `run` receives what write_mlp_folder was given, or null.
MlpState read_mlp_folder(const Path& folder, nlohmann::json* run = nullptr);

// A checkpoint file or a folder, float32 or packed.
std::unique_ptr<MlpInference> open_mlp(Executor& executor, const Path& path);

}  // namespace samba
