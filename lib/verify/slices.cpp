#include "samba/verify/slices.h"

#include <algorithm>
#include <cstring>

#include "samba/core/error.h"

namespace samba::verify {
namespace {

// The bytes of one position of `axis`, and the number of runs of such positions.
struct Runs {
  std::size_t before = 1;  // product of the axes in front
  std::size_t bytes = 1;   // of one position
};

Runs runs_of(const Shape& shape, std::size_t axis, DType dtype) {
  Runs runs;
  runs.bytes = dtype_size(dtype);
  for (std::size_t i = 0; i < axis; ++i) runs.before *= static_cast<std::size_t>(shape[i]);
  for (std::size_t i = axis + 1; i < shape.size(); ++i) runs.bytes *= static_cast<std::size_t>(shape[i]);
  return runs;
}

}  // namespace

Array slice(ConstArray array, std::size_t axis, Index from, Index to) {
  if (axis >= array.shape.size() || from < 0 || to < from || to > array.shape[axis]) {
    refuse_corrupt("case", "no positions " + std::to_string(from) + " to " + std::to_string(to) + " on axis " +
                               std::to_string(axis) + " of an array " + shape_text(array.shape));
  }
  const Runs runs = runs_of(array.shape, axis, array.dtype);
  const std::size_t stride = runs.bytes * static_cast<std::size_t>(array.shape[axis]);
  const std::size_t length = runs.bytes * static_cast<std::size_t>(to - from);
  Shape shape = array.shape;
  shape[axis] = to - from;
  Array part(array.dtype, shape);
  const auto* source = static_cast<const std::byte*>(array.data) + runs.bytes * static_cast<std::size_t>(from);
  auto* target = static_cast<std::byte*>(part.data());
  for (std::size_t run = 0; run < runs.before && length > 0; ++run) {
    std::memcpy(target + run * length, source + run * stride, length);
  }
  return part;
}

Array join(std::span<const Array> parts, std::size_t axis) {
  Shape shape = parts[0].shape();
  shape[axis] = 0;
  for (const Array& part : parts) shape[axis] += part.shape()[axis];
  Array whole(parts[0].dtype(), shape);
  const Runs runs = runs_of(shape, axis, whole.dtype());
  const std::size_t stride = runs.bytes * static_cast<std::size_t>(shape[axis]);
  auto* target = static_cast<std::byte*>(whole.data());
  for (const Array& part : parts) {
    const std::size_t length = runs.bytes * static_cast<std::size_t>(part.shape()[axis]);
    const auto* source = static_cast<const std::byte*>(part.data());
    for (std::size_t run = 0; run < runs.before && length > 0; ++run) {
      std::memcpy(target + run * stride, source + run * length, length);
    }
    target += length;
  }
  return whole;
}

Array reshaped(ConstArray array, Shape shape) {
  Array result(array.dtype, std::move(shape));
  if (result.size() != array.size()) {
    refuse_corrupt("case", "an array " + shape_text(array.shape) + " taken as " + shape_text(result.shape()));
  }
  if (result.byte_size() > 0) std::memcpy(result.data(), array.data, result.byte_size());
  return result;
}

Index argmax(std::span<const float> values) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (values[i] > values[best]) best = i;
  }
  return static_cast<Index>(best);
}

Array token_array(Index batch, Index length, std::span<const std::int32_t> ids) {
  Array array(DType::int32, {batch, length});
  if (array.size() != static_cast<Index>(ids.size())) throw Error(ErrorKind::internal, "token_array: wrong length");
  std::copy(ids.begin(), ids.end(), array.values<std::int32_t>().begin());
  return array;
}

}  // namespace samba::verify
