// Packed weights (spec 50 A4, A5): expansion of a matrix, and of gathered rows.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/core/error.h"
#include "samba/numerics/low_bit.h"

namespace samba::SAMBA_GPU {

namespace {

// One element of a packed matrix. The owner of the view stays on the host.
struct PackedCells {
  Index columns;
  const std::uint16_t* bits;
  const std::int8_t* codes;
  const std::int32_t* exponents;
  SAMBA_DEVICE float value(Index row, Index column) const {
    if (bits != nullptr) return expand_bfloat16(bits[row * columns + column]);
    return expand_int8(codes[row * columns + column], power_of_two(exponents[row]));
  }
};

PackedCells packed_cells(const ConstPackedWeight& packed) {
  if (packed.blocks != nullptr) refuse_unsupported("rows of blocks on the device " + std::string(kTargetName));
  return {packed.columns, packed.bits, packed.codes, packed.exponents};
}

struct Expand {
  PackedCells cells;
  float* values;
  SAMBA_DEVICE void operator()(Index i) const { values[i] = cells.value(i / cells.columns, i % cells.columns); }
};

struct GatherPacked {
  PackedCells cells;
  const std::int32_t* ids;
  float* y;
  SAMBA_DEVICE void operator()(Index i) const { y[i] = flush(cells.value(ids[i / cells.columns], i % cells.columns)); }
};

// Copies of the arrays of a packed weight, as they lie.
class PackedCopy final : public PreparedWeight {
 public:
  PackedCopy(Context& context, const ConstPackedWeight& packed)
      : format_(packed.format),
        n_(packed.rows),
        k_(packed.columns),
        cells_(context.memory(), n_ * k_ * (packed.bits != nullptr ? 2 : 1)),
        exponents_(context.memory(), packed.bits != nullptr ? 0 : n_) {}
  Index rows() const override { return n_; }
  Index columns() const override { return k_; }
  WeightFormat format() const override { return format_; }
  std::size_t byte_size() const override { return cells_.byte_size() + exponents_.byte_size(); }

  void fill(Context& context, const ConstPackedWeight& packed) {
    const void* cells = packed.bits != nullptr ? static_cast<const void*>(packed.bits) : packed.codes;
    context.memory().copy(cells_.data(), cells, cells_.byte_size());
    if (exponents_.size() > 0) context.memory().copy(exponents_.data(), packed.exponents, exponents_.byte_size());
  }
  PackedCells cells() const {
    const bool bits = format_ == WeightFormat::bfloat16;
    return {k_, bits ? reinterpret_cast<const std::uint16_t*>(cells_.data()) : nullptr,
            bits ? nullptr : reinterpret_cast<const std::int8_t*>(cells_.data()), exponents_.data()};
  }

 private:
  WeightFormat format_;
  Index n_, k_;
  DeviceArray<std::byte> cells_;
  DeviceArray<std::int32_t> exponents_;
};

}  // namespace

std::unique_ptr<PreparedWeight> prepare_packed(Context& context, const ConstPackedWeight& packed) {
  packed_cells(packed);  // refuses what it cannot read
  auto prepared = std::make_unique<PackedCopy>(context, packed);
  prepared->fill(context, packed);
  return prepared;
}

void refresh_packed(Context& context, PreparedWeight& prepared, const ConstPackedWeight& packed) {
  static_cast<PackedCopy&>(prepared).fill(context, packed);
}

void gather_prepared(Context& context, const PreparedWeight& weight, Index count, const std::int32_t* rows,
                     float* values) {
  const PackedCells cells = static_cast<const PackedCopy&>(weight).cells();
  for_each(context, count * weight.columns(), GatherPacked{cells, rows, values});
}

Weight stored_packed(Context& context, const PreparedWeight& weight) {
  const PackedCells cells = static_cast<const PackedCopy&>(weight).cells();
  const Index n = weight.rows(), k = weight.columns();
  const bool bits = cells.bits != nullptr;
  Array values(bits ? DType::uint16 : DType::int8, {n, k});
  context.memory().copy_to_host(values.data(), bits ? static_cast<const void*>(cells.bits) : cells.codes,
                                values.byte_size());
  if (bits) return PackedWeight(std::move(values));
  Array exponents(DType::int32, {n});
  context.memory().copy_to_host(exponents.data(), cells.exponents, exponents.byte_size());
  return PackedWeight(std::move(values), std::move(exponents));
}

void linear_packed(Context& context, const PreparedWeight& weight, Index m, const float* x, float* y) {
  const PackedCells cells = static_cast<const PackedCopy&>(weight).cells();
  const Index n = weight.rows(), k = weight.columns();
  const Workspace::Scope scope(context.workspace());
  float* values = context.workspace().floats(n * k);
  for_each(context, n * k, Expand{cells, values});
  launch_nt(context, m, n, k, x, values, y);
}

void expand_packed(Context& context, const ConstPackedWeight& packed, float* values) {
  for_each(context, packed.rows * packed.columns, Expand{packed_cells(packed), values});
}

void gather_packed(Context& context, Index positions, Index width, const std::int32_t* ids,
                   const ConstPackedWeight& packed, float* y) {
  for_each(context, positions * width, GatherPacked{packed_cells(packed), ids, y});
}

}  // namespace samba::SAMBA_GPU
