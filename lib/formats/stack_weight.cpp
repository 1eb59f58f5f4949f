#include "samba/formats/stack_weight.h"

#include <cstring>
#include <vector>

#include "samba/core/error.h"
#include "samba/core/sha256.h"

namespace samba {

namespace {

// The parts of a weight in the order of its raw bytes; the second is empty but for int8.
struct Parts {
  std::span<const std::byte> first, second;
};

Parts parts_of(const ConstWeight& weight) {
  const auto view = [](const void* data, Index elements, std::size_t width) {
    return std::span(static_cast<const std::byte*>(data), static_cast<std::size_t>(elements) * width);
  };
  if (!weight.is_packed()) return {view(weight.array().data, weight.size(), dtype_size(weight.array().dtype)), {}};
  const ConstPackedWeight& packed = weight.packed();
  if (packed.format == WeightFormat::bfloat16) return {view(packed.bits, weight.size(), 2), {}};
  return {view(packed.codes, weight.size(), 1), view(packed.exponents, packed.rows, 4)};
}

Array array_of(DType dtype, Shape shape, std::span<const std::byte> bytes) {
  Array array(dtype, std::move(shape));
  if (array.byte_size() != bytes.size()) throw Error(ErrorKind::internal, "raw bytes do not fit their shape");
  std::memcpy(array.data(), bytes.data(), bytes.size());
  return array;
}

}  // namespace

DType stored_dtype(WeightFormat format) {
  switch (format) {
    case WeightFormat::float32:
      return DType::float32;
    case WeightFormat::bfloat16:
      return DType::bfloat16;
    case WeightFormat::int8:
      return DType::int8;
    default:
      break;
  }
  throw Error(ErrorKind::internal, "a file of ours has no dtype for " + std::string(weight_format_name(format)));
}

WeightFormat format_of(DType dtype) {
  for (const WeightFormat format : {WeightFormat::float32, WeightFormat::bfloat16, WeightFormat::int8}) {
    if (stored_dtype(format) == dtype) return format;
  }
  throw Error(ErrorKind::internal, "no weight is stored as " + std::string(dtype_name(dtype)));
}

StackTensorSource stack_tensor_source(const std::string& name, const ConstWeight& weight) {
  const DType dtype = weight.is_packed() ? stored_dtype(weight.format()) : weight.array().dtype;
  return {name, dtype, weight.shape(), [weight](std::span<std::byte> raw) {
            const Parts parts = parts_of(weight);
            std::copy(parts.first.begin(), parts.first.end(), raw.begin());
            std::copy(parts.second.begin(), parts.second.end(),
                      raw.begin() + static_cast<std::ptrdiff_t>(parts.first.size()));
          }};
}

Weight weight_of_raw(DType dtype, const Shape& shape, std::span<const std::byte> raw) {
  if (dtype == DType::bfloat16) {
    if (shape.size() == 2) return PackedWeight(array_of(DType::uint16, shape, raw));
    refuse_value("a bfloat16 weight has two dimensions, got " + shape_text(shape));
  }
  if (dtype == DType::int8) {
    const auto codes = static_cast<std::size_t>(element_count(shape));
    return PackedWeight(array_of(DType::int8, shape, raw.first(codes)),
                        array_of(DType::int32, {shape.at(0)}, raw.subspan(codes)));
  }
  return array_of(dtype, shape, raw);
}

StackTensor describe_weight(const std::string& name, const ConstWeight& weight) {
  StackTensor tensor;
  tensor.name = name;
  tensor.dtype = weight.is_packed() ? stored_dtype(weight.format()) : weight.array().dtype;
  tensor.shape = weight.shape();
  const Parts parts = parts_of(weight);
  tensor.raw_bytes = tensor.stored_bytes = parts.first.size() + parts.second.size();
  Sha256 hash;
  hash.update(parts.first.data(), parts.first.size());
  hash.update(parts.second.data(), parts.second.size());
  tensor.sha256 = hash.finish_hex();
  return tensor;
}

}  // namespace samba
