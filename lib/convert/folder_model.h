// A model in a folder of another program, as an OpenModel: Hugging Face transformers, and mamba_ssm.
#pragma once

#include <functional>

#include "samba/convert/huggingface_names.h"
#include "samba/convert/open_model.h"
#include "samba/convert/tensor_files.h"

namespace samba {

// config.json of the folder, and what it is: a folder of samba has the key format, or an object samba.
nlohmann::json read_folder_config(const Path& folder);

// Refusals: parse_huggingface_config, open_tensor_files, take_tensors.
// A folder that samba wrote tells its state (optimizer, schedule, step) under "samba"; its moments, which `everything`
// reads, are in optimizer.safetensors.
OpenModel open_huggingface_folder(const Path& folder, Reading reading);
OpenModel open_mamba_ssm_folder(const Path& folder);

// The tensors of the registry out of those of the files. float32 tensors and bfloat16 matrices are views; bfloat16
// vectors and float16 tensors are expanded, which is exact. Error(value), naming the tensor: one that is missing, that
// no tensor of the registry comes from, of another shape or dtype, or a head that differs from the embedding it should
// be tied to.
std::vector<ModelTensor> take_tensors(const Path& folder, const TensorFiles& files, const StackConfig& config,
                                      const std::function<TensorPart(const ParameterTensor&)>& part_of);

// Files beside the weights that belong to the model: tokenizer and generation settings.
std::vector<Path> companion_files(const Path& folder);

}  // namespace samba
