// Weights in device memory: float32 values, or a matrix that is stored packed (spec 50 A) and expanded where it is
// used.
#pragma once

#include <span>

#include "samba/kernels/memory.h"
#include "samba/numerics/packed_weight.h"

namespace samba {

// A view of device memory. A packed one is a matrix whose `packed` holds device pointers.
class WeightView {
 public:
  WeightView() = default;
  WeightView(const float* values) : values_(values) {}  // NOLINT(google-explicit-constructor)
  WeightView(const ConstPackedWeight& packed)
      : packed_(packed), is_packed_(true) {}  // NOLINT(google-explicit-constructor)

  bool is_packed() const { return is_packed_; }
  WeightFormat format() const { return is_packed_ ? packed_.format : WeightFormat::float32; }
  const float* values() const { return values_; }              // null when packed
  const ConstPackedWeight& packed() const { return packed_; }  // of a packed one

 private:
  const float* values_ = nullptr;
  ConstPackedWeight packed_;
  bool is_packed_ = false;
};

// An owning weight, in the form it is stored in. Movable. Rows of blocks stay where they are when the memory is the
// host's, and live as long as their owner: ConstPackedWeight::owner, or the caller.
class DeviceWeight {
 public:
  DeviceWeight() = default;
  // Uninitialised float32 values.
  DeviceWeight(Memory& memory, const Shape& shape);
  // A copy of host memory, packed when `weight` is.
  DeviceWeight(Memory& memory, const ConstWeight& weight);

  DeviceWeight clone(Memory& memory) const;

  WeightFormat format() const { return format_; }
  const Shape& shape() const { return shape_; }
  Index size() const { return element_count(shape_); }
  std::size_t byte_size() const;
  WeightView view() const;
  float* values();  // of float32
  // What it holds, on the host.
  Weight download() const;

 private:
  DeviceWeight(Memory& memory, WeightFormat format, Shape shape);
  void upload_blocks(Memory& memory);

  WeightFormat format_ = WeightFormat::float32;
  Shape shape_;
  DeviceArray<std::byte> cells_;  // float32 values, bfloat16 bits, int8 codes, or a copy of blocks
  DeviceArray<std::int32_t> exponents_;
  ConstPackedWeight blocks_;  // of rows of blocks: where they lie
};

// Rows [first, end) of a packed matrix.
ConstPackedWeight packed_rows(const ConstPackedWeight& packed, Index first, Index end);

}  // namespace samba
