// The small MLP as a folder of safetensors files (docs/formats/mlp_checkpoint.md):
//
//   config.json             {"format": "samba.mlp_folder.v1", "weight_format", and what the checkpoint has beside its
//                           tensors}
//   model.safetensors       weight1, bias1, weight2, bias2; packed ones as NAME.bits, or NAME.codes and NAME.exponents
//   optimizer.safetensors   exp_avg and exp_avg_sq (195 values each); none when the weights are packed
#pragma once

#include "samba/core/files.h"
#include "samba/numerics/packed_weight.h"
#include "samba/train/mlp_checkpoint.h"

namespace samba {

bool is_mlp_folder(const Path& path);

// `folder` must not exist, or be empty. Packed weights (bfloat16, int8) are for inference: the moments stay behind.
void write_mlp_folder(const MlpState& state, WeightFormat format, const Path& folder);
// Error(corrupt) for what is missing, too many or of another shape; Error(unsupported) for packed weights, which have
// no state to train on.
MlpState read_mlp_folder(const Path& folder);

// A checkpoint file or a folder, float32 or packed.
std::unique_ptr<MlpInference> open_mlp(Executor& executor, const Path& path);

}  // namespace samba
