// Weights as the tensors of a samba.stack.v1 file (docs/formats/stack.md): float32 values, bfloat16 bits, or int8 codes
// with the exponents behind them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "samba/formats/stack_archive.h"
#include "samba/numerics/packed_weight.h"

namespace samba {

DType stored_dtype(WeightFormat format);  // float32, bfloat16, int8

WeightFormat format_of(DType dtype);  // its reverse; other dtypes are Error(internal)

// The bytes of the weight must stay until the archive was written.
StackTensorSource stack_tensor_source(const std::string& name, const ConstWeight& weight);

// `raw`: all raw bytes of a parameter of such a file.
Weight weight_of_raw(DType dtype, const Shape& shape, std::span<const std::byte> raw);

// Entry of the tensor without a codec, digest included.
StackTensor describe_weight(const std::string& name, const ConstWeight& weight);

}  // namespace samba
