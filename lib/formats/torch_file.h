// The tensors of a file that torch.save wrote (pytorch_model.bin): a zip file with a pickle in it.
//
// A pickle is a program. This reader knows the few instructions and the few names that describe tensors (ordered
// dictionaries, storages, torch._utils._rebuild_tensor_v2 and _rebuild_parameter), carries nothing out, and refuses
// every other name and instruction.
#pragma once

#include <span>
#include <string>

#include "samba/core/array.h"

namespace samba {

// Views of `bytes`, by name; the data need not be aligned. Two tensors may be the same bytes (tied weights).
// Error(corrupt) of the classes "zip", "pickle" (the name or instruction is named) and "tensor": a tensor beyond its
// storage, one that is not contiguous, an unknown dtype.
ConstArrayMap index_torch_file(std::span<const std::byte> bytes, const std::string& source);

}  // namespace samba
