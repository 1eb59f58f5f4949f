// Which tensors of a folder of Hugging Face transformers, or of mamba_ssm, hold those of a stack.
#pragma once

#include <string>

#include "samba/convert/huggingface_config.h"
#include "samba/core/array.h"
#include "samba/model/registry.h"

namespace samba {

// A tensor of the folder, or rows of it.
struct TensorPart {
  std::string tensor;   // "model.layers.0.self_attn.qkv_proj.weight"
  Shape shape;          // of the whole tensor
  Index first_row = 0;  // where the part begins; it has the elements of the registry's tensor
  bool whole = true;
};

TensorPart huggingface_part(HuggingFaceType type, const StackConfig& config, const ParameterTensor& tensor);

// Of mamba_ssm, for layers of one Mamba kind.
TensorPart mamba_ssm_part(const StackConfig& config, const ParameterTensor& tensor);

}  // namespace samba
