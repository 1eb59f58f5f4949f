// Vectors of stored weight cells, expanded in registers (spec 50 A4, A5), once per target.
#if defined(SAMBA_CPU_PACKED_CELLS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_PACKED_CELLS_INL_H_
#undef SAMBA_CPU_PACKED_CELLS_INL_H_
#else
#define SAMBA_CPU_PACKED_CELLS_INL_H_
#endif

#include <algorithm>

#include "samba/backends/cpu/lanes-inl.h"
#include "samba/numerics/block_weight.h"
#include "samba/numerics/low_bit.h"
#include "samba/numerics/packed_weight.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

// load(d, cells, scale): one vector of aligned cells as floats; `scale` holds the power of two of each lane's row.
struct FloatCells {
  using Cell = float;
  static constexpr bool kScaled = false;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const float* cells, hn::Vec<D> /*scale*/) {
    return hn::LoadU(d, cells);
  }
};

struct Bfloat16Cells {
  using Cell = std::uint16_t;
  static constexpr bool kScaled = false;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::uint16_t* cells, hn::Vec<D> /*scale*/) {
    const hn::Rebind<std::uint16_t, D> half;
    const hn::RebindToUnsigned<D> whole;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(whole, hn::Load(half, cells))));
  }
};

struct Int8Cells {
  using Cell = std::int8_t;
  static constexpr bool kScaled = true;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::int8_t* cells, hn::Vec<D> scale) {
    const hn::Rebind<std::int8_t, D> quarter;
    const hn::RebindToSigned<D> whole;
    return hn::Mul(hn::ConvertTo(d, hn::PromoteTo(whole, hn::Load(quarter, cells))), scale);
  }
};

// values[rows, columns] = the expanded rows, with kFlush passed through F (which int8 rows need not: the spec's scale
// is zero or normal, and so is a product with it).
template <bool kFlush>
void expand_rows(const ConstPackedWeight& packed, float* HWY_RESTRICT values) {
  if (packed.blocks != nullptr) {
    for (Index row = 0; row < packed.rows; ++row, values += packed.columns) {
      expand_block_row(packed.format, packed.block_row(row), packed.columns, values);
      if constexpr (kFlush) std::transform(values, values + packed.columns, values, flush);
    }
    return;
  }
  if (packed.format == WeightFormat::bfloat16) {
    const Index cells = packed.rows * packed.columns;
    for (Index i = 0; i < cells; ++i) {
      const float value = expand_bfloat16(packed.bits[i]);
      values[i] = kFlush ? flush(value) : value;
    }
    return;
  }
  for (Index row = 0; row < packed.rows; ++row, values += packed.columns) {
    const float scale = power_of_two(packed.exponents[row]);
    const std::int8_t* HWY_RESTRICT codes = packed.codes + row * packed.columns;
    for (Index j = 0; j < packed.columns; ++j) values[j] = static_cast<float>(codes[j]) * scale;
  }
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
