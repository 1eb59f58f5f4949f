#include "samba/core/array.h"

#include <limits>

#include "samba/core/error.h"
#include "samba/core/resident.h"

namespace samba {

std::size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::int64:
      return 8;
    case DType::float32:
    case DType::int32:
      return 4;
    case DType::float16:
    case DType::bfloat16:
    case DType::uint16:
      return 2;
    case DType::int8:
    case DType::uint8:
      return 1;
  }
  throw Error(ErrorKind::internal, "unknown dtype");
}

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
    case DType::float16:
      return "float16";
    case DType::bfloat16:
      return "bfloat16";
    case DType::int8:
      return "int8";
    case DType::int32:
      return "int32";
    case DType::int64:
      return "int64";
    case DType::uint8:
      return "uint8";
    case DType::uint16:
      return "uint16";
  }
  throw Error(ErrorKind::internal, "unknown dtype");
}

Index element_count(const Shape& shape) {
  Index count = 1;
  for (const Index size : shape) {
    if (size < 0) refuse_value("a shape has no negative sizes, got " + shape_text(shape));
    if (size != 0 && count > std::numeric_limits<Index>::max() / size) {
      refuse_value("the shape " + shape_text(shape) + " has more elements than 64 bits can count");
    }
    count *= size;
  }
  return count;
}

std::string shape_text(const Shape& shape) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(shape[axis]);
  }
  if (shape.size() == 1) text += ",";
  return text + ")";
}

Array::Array(DType dtype, Shape shape) : dtype_(dtype), shape_(std::move(shape)) {
  constexpr std::size_t kLarge = std::size_t{2} << 20;
  const std::size_t bytes = static_cast<std::size_t>(element_count(shape_)) * dtype_size(dtype_);
  if (bytes >= kLarge) {
    bytes_.reserve(bytes);
    ask_for_large_pages(bytes_.data(), bytes);  // before the zeros are written
  }
  bytes_.resize(bytes);
}

Array Array::from_floats(Shape shape, std::span<const float> values) {
  Array array(DType::float32, std::move(shape));
  if (array.byte_size() != values.size_bytes()) {
    throw Error(ErrorKind::internal,
                "from_floats: " + std::to_string(values.size()) + " values for the shape " + shape_text(array.shape()));
  }
  if (!values.empty()) std::memcpy(array.data(), values.data(), values.size_bytes());
  return array;
}

}  // namespace samba
