#include "samba/kernels/weight.h"

#include <utility>
#include <vector>

#include "samba/core/error.h"
#include "samba/numerics/block_weight.h"

namespace samba {

namespace {

Index cell_bytes(WeightFormat format, const Shape& shape) {
  const Index size = element_count(shape);
  switch (format) {
    case WeightFormat::float32:
      return size * Index{sizeof(float)};
    case WeightFormat::bfloat16:
      return size * Index{sizeof(std::uint16_t)};
    case WeightFormat::int8:
      return size;
    default:
      return shape[0] * static_cast<Index>(block_row_bytes(format, shape[1]));
  }
}

const void* cells_of(const ConstWeight& weight) {
  if (!weight.is_packed()) return weight.array().data;
  if (weight.format() == WeightFormat::bfloat16) return weight.packed().bits;
  return weight.packed().codes;
}

}  // namespace

DeviceWeight::DeviceWeight(Memory& memory, WeightFormat format, Shape shape)
    : format_(format), shape_(std::move(shape)), cells_(memory, cell_bytes(format, shape_)) {
  if (format == WeightFormat::int8) exponents_ = DeviceArray<std::int32_t>(memory, shape_[0]);
}

DeviceWeight::DeviceWeight(Memory& memory, const Shape& shape) : DeviceWeight(memory, WeightFormat::float32, shape) {}

DeviceWeight::DeviceWeight(Memory& memory, const ConstWeight& weight) {
  if (weight.is_packed() && weight.packed().blocks != nullptr) {
    format_ = weight.format();
    shape_ = weight.shape();
    blocks_ = weight.packed();
    if (!memory.is_host()) upload_blocks(memory);
    return;
  }
  *this = DeviceWeight(memory, weight.format(), weight.shape());
  if (cells_.size() > 0) memory.copy_to_device(cells_.data(), cells_of(weight), cells_.byte_size());
  if (exponents_.size() > 0) exponents_.upload(weight.packed().exponents);
}

// The rows in the view's order, in one copy.
void DeviceWeight::upload_blocks(Memory& memory) {
  const std::size_t bytes = blocks_.row_bytes();
  cells_ = DeviceArray<std::byte>(memory, cell_bytes(format_, shape_));
  if (blocks_.interleaved_head == 0) {
    if (cells_.size() > 0) cells_.upload(blocks_.block_row(0));
  } else {
    std::vector<std::byte> ordered;
    ordered.reserve(cells_.byte_size());
    for (Index i = 0; i < blocks_.rows; ++i) {
      ordered.insert(ordered.end(), blocks_.block_row(i), blocks_.block_row(i) + bytes);
    }
    cells_.upload(ordered.data());
  }
  blocks_ = ConstPackedWeight::of_blocks(format_, blocks_.rows, blocks_.columns, cells_.data());
}

std::size_t DeviceWeight::byte_size() const {
  if (blocks_.blocks != nullptr) return static_cast<std::size_t>(cell_bytes(format_, shape_));
  return cells_.byte_size() + exponents_.byte_size();
}

DeviceWeight DeviceWeight::clone(Memory& memory) const {
  if (blocks_.blocks != nullptr && cells_.size() == 0) return DeviceWeight(memory, ConstWeight(blocks_));
  DeviceWeight copy(memory, format_, shape_);
  if (cells_.size() > 0) memory.copy(copy.cells_.data(), cells_.data(), cells_.byte_size());
  if (exponents_.size() > 0) memory.copy(copy.exponents_.data(), exponents_.data(), exponents_.byte_size());
  if (blocks_.blocks != nullptr) {
    copy.blocks_ = ConstPackedWeight::of_blocks(format_, blocks_.rows, blocks_.columns, copy.cells_.data());
  }
  return copy;
}

WeightView DeviceWeight::view() const {
  if (format_ == WeightFormat::float32) return reinterpret_cast<const float*>(cells_.data());
  if (blocks_.blocks != nullptr) return blocks_;
  ConstPackedWeight packed;
  packed.format = format_;
  packed.rows = shape_[0];
  packed.columns = shape_[1];
  if (format_ == WeightFormat::bfloat16) {
    packed.bits = reinterpret_cast<const std::uint16_t*>(cells_.data());
  } else {
    packed.codes = reinterpret_cast<const std::int8_t*>(cells_.data());
    packed.exponents = exponents_.data();
  }
  return packed;
}

float* DeviceWeight::values() {
  if (format_ != WeightFormat::float32) throw Error(ErrorKind::internal, "the values of a packed weight");
  return reinterpret_cast<float*>(cells_.data());
}

Weight DeviceWeight::download() const {
  const auto read = [&](DType dtype) {
    Array cells(dtype, shape_);
    if (cells.byte_size() > 0) cells_.download(static_cast<std::byte*>(cells.data()));
    return cells;
  };
  if (format_ == WeightFormat::float32) return read(DType::float32);
  if (blocks_.blocks != nullptr && cells_.size() == 0) return PackedWeight(blocks_);
  if (blocks_.blocks != nullptr) {
    const std::shared_ptr<std::byte[]> rows(new std::byte[byte_size()]);
    cells_.download(rows.get());
    return PackedWeight(ConstPackedWeight::of_blocks(format_, shape_[0], shape_[1], rows.get(), rows));
  }
  if (format_ == WeightFormat::bfloat16) return PackedWeight(read(DType::uint16));
  Array exponents(DType::int32, {shape_[0]});
  exponents_.download(exponents.values<std::int32_t>().data());
  return PackedWeight(read(DType::int8), std::move(exponents));
}

ConstPackedWeight packed_rows(const ConstPackedWeight& packed, Index first, Index end) {
  ConstPackedWeight rows = packed;
  rows.rows = end - first;
  rows.first_row += first;
  if (packed.bits != nullptr) rows.bits += first * packed.columns;
  if (packed.codes != nullptr) rows.codes += first * packed.columns;
  if (packed.exponents != nullptr) rows.exponents += first;
  return rows;
}

}  // namespace samba
