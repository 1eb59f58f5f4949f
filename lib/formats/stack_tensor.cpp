#include "samba/formats/stack_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "samba/core/error.h"
#include "samba/formats/canonical_json.h"
#include "samba/formats/zstd_frame.h"
#include "samba/numerics/float32.h"

namespace samba {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kLongestName = 255;
constexpr std::size_t kMostDimensions = 8;
constexpr Index kMostElements = Index{1} << 58;  // their bytes, and the sum of all, fit in 64 bits
constexpr int kLargestExponent = 127;            // of a float32

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

bool is_sha256_text(const Json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char digit) {
           return (digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f');
         });
}

DType parse_dtype(const Json& value) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::int8, DType::int32}) {
    if (value == dtype_name(dtype)) return dtype;
  }
  refuse_value("has the dtype " + value.dump() + "; accepted are float32, bfloat16, int8, int32");
}

Shape parse_shape(const Json& value) {
  if (!value.is_array()) refuse_value("has a shape that is no list");
  Shape shape;
  for (const Json& size : value) {
    if (!size.is_number_unsigned() || size.get<std::uint64_t>() > static_cast<std::uint64_t>(kMostElements)) {
      refuse_value("has the shape " + value.dump() + "; sizes are integers from 1 to 2^58");
    }
    shape.push_back(size.get<Index>());
  }
  return shape;
}

std::string parse_digest(const Json& entry, const char* key) {
  if (!is_sha256_text(entry[key])) refuse_value(std::string("must have 64 lower-case hex digits as ") + key);
  return entry[key].get<std::string>();
}

void check_stored_bytes(const StackTensor& tensor) {
  const std::string given = "has stored_bytes " + std::to_string(tensor.stored_bytes);
  const std::string raw = std::to_string(tensor.raw_bytes) + " raw bytes";
  if (tensor.codec == TensorCodec::none) {
    if (tensor.stored_bytes != tensor.raw_bytes) refuse_value(given + ", but its shape has " + raw);
    return;
  }
  if (tensor.stored_bytes >= tensor.raw_bytes) refuse_value(given + "; a zstd frame must be shorter than the " + raw);
  if (tensor.raw_bytes > most_zstd_content(tensor.stored_bytes)) {
    refuse_value(given + ", in which no zstd frame can hold " + raw);
  }
}

}  // namespace

TensorCodec tensor_codec(const std::string& name) {
  if (name == "none") return TensorCodec::none;
  if (name == "zstd") return TensorCodec::zstd;
  refuse_value("unknown codec '" + name + "'; one of none, zstd");
}

const char* tensor_codec_name(TensorCodec codec) { return codec == TensorCodec::zstd ? "zstd" : "none"; }

void check_stack_tensor_name(const std::string& name) {
  const bool characters =
      std::all_of(name.begin(), name.end(), [](char c) { return is_name_character(c) || c == '.'; });
  const bool parts = !name.starts_with('.') && !name.ends_with('.') && name.find("..") == std::string::npos;
  if (name.empty() || name.size() > kLongestName || !characters || !parts) {
    refuse_value("the tensor name " + canonical_json(name.substr(0, kLongestName)) +
                 " is not accepted: 1 to 255 letters, digits, '_', '-' and single points inside");
  }
}

std::uint64_t check_stack_tensor(const std::string& name, DType dtype, const Shape& shape, TensorRole role) {
  check_stack_tensor_name(name);
  const bool known = role == TensorRole::parameter
                         ? dtype == DType::float32 || dtype == DType::bfloat16 || dtype == DType::int8
                         : dtype == DType::float32 || dtype == DType::int32;
  if (!known) {
    refuse_value("has the dtype " + std::string(dtype_name(dtype)) + "; accepted are " +
                 (role == TensorRole::parameter ? "float32, bfloat16 and int8" : "float32 and int32"));
  }
  if (shape.size() > kMostDimensions) refuse_value("has more than 8 dimensions");
  if (dtype == DType::int8 && shape.size() != 2) {
    refuse_value("has the shape " + shape_text(shape) + "; int8 weights have two dimensions");
  }
  const Index elements = element_count(shape);
  if (elements < 1 || elements > kMostElements) {
    refuse_value("has the shape " + shape_text(shape) + "; a tensor has 1 to 2^58 elements");
  }
  const std::uint64_t exponents = dtype == DType::int8 ? 4 * static_cast<std::uint64_t>(shape[0]) : 0;
  return static_cast<std::uint64_t>(elements) * dtype_size(dtype) + exponents;
}

Json stack_tensor_to_json(const StackTensor& tensor) {
  Json entry = {{"codec", tensor_codec_name(tensor.codec)},
                {"dtype", dtype_name(tensor.dtype)},
                {"name", tensor.name},
                {"sha256", tensor.sha256},
                {"shape", tensor.shape},
                {"stored_bytes", tensor.stored_bytes}};
  if (tensor.codec != TensorCodec::none) entry["stored_sha256"] = tensor.stored_sha256;
  return entry;
}

StackTensor stack_tensor_from_json(const Json& entry, TensorRole role) {
  for (const char* key : {"codec", "dtype", "name", "sha256", "shape", "stored_bytes"}) {
    if (!entry.is_object() || !entry.contains(key)) refuse_value(std::string("has no key ") + key);
  }
  StackTensor tensor;
  tensor.role = role;
  if (!entry["name"].is_string()) refuse_value("has a name that is no text");
  tensor.name = entry["name"].get<std::string>();
  if (entry["codec"] != "none" && entry["codec"] != "zstd") {
    refuse_value("has the codec " + entry["codec"].dump() + "; accepted are none and zstd");
  }
  tensor.codec = tensor_codec(entry["codec"].get<std::string>());
  const bool packed = tensor.codec != TensorCodec::none;
  if (entry.size() != (packed ? 7U : 6U) || entry.contains("stored_sha256") != packed) {
    refuse_value(
        "must have exactly the keys codec, dtype, name, sha256, shape, stored_bytes, and stored_sha256 with a "
        "codec");
  }
  tensor.dtype = parse_dtype(entry["dtype"]);
  tensor.shape = parse_shape(entry["shape"]);
  tensor.sha256 = parse_digest(entry, "sha256");
  if (packed) tensor.stored_sha256 = parse_digest(entry, "stored_sha256");
  if (!entry["stored_bytes"].is_number_unsigned()) refuse_value("has stored_bytes that are no integer from 0 on");
  tensor.stored_bytes = entry["stored_bytes"].get<std::uint64_t>();
  tensor.raw_bytes = check_stack_tensor(tensor.name, tensor.dtype, tensor.shape, role);
  check_stored_bytes(tensor);
  return tensor;
}

std::optional<Index> first_non_finite(DType dtype, const Shape& shape, std::span<const std::byte> raw) {
  const Index elements = element_count(shape);
  const auto read = [&]<class T>(T value, std::size_t at) {
    std::memcpy(&value, raw.data() + at, sizeof value);
    return value;
  };
  const std::size_t codes = static_cast<std::size_t>(elements);
  for (std::size_t i = 0; i < codes; ++i) {
    bool finite = true;
    if (dtype == DType::float32) {
      finite = is_finite(read(0.0F, 4 * i));
    } else if (dtype == DType::bfloat16) {
      finite = (read(std::uint16_t{0}, 2 * i) & 0x7F80U) != 0x7F80U;
    } else if (dtype == DType::int8) {
      const auto row = i / static_cast<std::size_t>(shape[1]);
      const auto exponent = read(std::int32_t{0}, codes + 4 * row);
      const auto code = static_cast<double>(read(std::int8_t{0}, i));
      // pow2(exponent) is infinite above 127, and infinity times code 0 is NaN (spec 50 A5).
      finite = exponent <= kLargestExponent && std::fabs(std::ldexp(code, exponent)) < std::ldexp(1.0, 128);
    }
    if (!finite) return static_cast<Index>(i);
  }
  return std::nullopt;
}

}  // namespace samba
