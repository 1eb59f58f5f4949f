#include "samba/backends/cpu/weight_panels.h"

#include <algorithm>

#include "samba/numerics/low_bit.h"

namespace samba::cpu {

namespace {

constexpr Index kSmallPack = 32 * 1024;  // cells below which one thread packs faster than a team

Index cell_bytes(WeightFormat format) {
  return format == WeightFormat::float32 ? 4 : format == WeightFormat::bfloat16 ? 2 : 1;
}

// packed[p][r] = source[r * k + p] for r < rows; columns beyond `rows` are 0.
template <class Cell>
void transpose_cells(const Cell* source, Index rows, Index k, Index width, Cell* packed) {
  for (Index p = 0; p < k; ++p, packed += width) {
    for (Index r = 0; r < rows; ++r) packed[r] = source[r * k + p];
    std::fill(packed + rows, packed + width, Cell{0});
  }
}

}  // namespace

WeightPanels::WeightPanels(HostMemory& memory, const TileShape& tile, WeightFormat format, Index n, Index k)
    : layout_(n, tile), format_(format), k_(k), cells_(memory, cell_bytes(format) * layout_.padded_columns() * k) {
  if (format == WeightFormat::int8) scales_ = DeviceArray<float>(memory, layout_.padded_columns());
}

template <class Cell>
void WeightPanels::pack_cells(Context& context, const Cell* source) {
  auto* packed = reinterpret_cast<Cell*>(cells_.data());
  context.parallel(
      layout_.count(), 1 + kSmallPack / (layout_.width * layout_.lanes * k_), [&](Index first, Index end, int) {
        for (Index panel = first; panel < end; ++panel) {
          const Index column = layout_.first(panel) * layout_.lanes;
          const Index width = layout_.panel_vectors(panel) * layout_.lanes;
          transpose_cells(source + column * k_, std::min(width, layout_.n - column), k_, width, packed + column * k_);
        }
      });
}

void WeightPanels::fill(Context& context, const WeightView& weight) {
  switch (weight.format()) {
    case WeightFormat::float32:
      return pack_panels(context, layout_, k_, PanelSource::rows, weight.values(),
                         reinterpret_cast<float*>(cells_.data()));
    case WeightFormat::bfloat16:
      return pack_cells(context, weight.packed().bits);
    default:
      break;
  }
  pack_cells(context, weight.packed().codes);
  const std::int32_t* exponents = weight.packed().exponents;
  std::transform(exponents, exponents + layout_.n, scales_.data(), power_of_two);
  std::fill(scales_.data() + layout_.n, scales_.data() + layout_.padded_columns(), 0.0F);
}

}  // namespace samba::cpu
