// One tensor of a samba.stack.v1 file (docs/formats/stack.md): its entry in the header and its raw bytes.
//
// Raw bytes are row-major values; of int8 with two dimensions the codes and behind them one int32 exponent a row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "samba/core/array.h"

namespace samba {

enum class TensorCodec { none, zstd };

TensorCodec tensor_codec(const std::string& name);  // Error(value) for an unknown name
const char* tensor_codec_name(TensorCodec codec);   // "none", "zstd"

// Parameters are float32, bfloat16 or int8, moments float32 or int32.
enum class TensorRole { parameter, moment };

struct StackTensor {
  TensorRole role = TensorRole::parameter;
  std::string name;
  DType dtype = DType::float32;
  Shape shape;
  TensorCodec codec = TensorCodec::none;
  std::uint64_t raw_bytes = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t offset = 0;   // of the stored bytes, from the start of the file
  std::string sha256;         // of the raw bytes
  std::string stored_sha256;  // of the stored bytes; empty without a codec
};

// Error(value) for a name, shape or dtype that the file does not hold, or too many bytes.
std::uint64_t check_stack_tensor(const std::string& name, DType dtype, const Shape& shape, TensorRole role);
void check_stack_tensor_name(const std::string& name);

// The entry as the header holds it, and back. Error(value) for an entry that is none; `offset` is not set.
nlohmann::json stack_tensor_to_json(const StackTensor& tensor);
StackTensor stack_tensor_from_json(const nlohmann::json& entry, TensorRole role);

// The first element that is not finite once it is expanded. `raw` are all raw bytes of a tensor that was checked.
std::optional<Index> first_non_finite(DType dtype, const Shape& shape, std::span<const std::byte> raw);

}  // namespace samba
