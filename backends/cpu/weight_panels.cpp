#include "samba/backends/cpu/weight_panels.h"

#include <algorithm>
#include <utility>

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
  if (format != WeightFormat::int8) return;
  scales_ = DeviceArray<float>(memory, layout_.padded_columns());
  exponents_.resize(static_cast<std::size_t>(n));
}

std::size_t WeightPanels::bytes(const TileShape& tile, WeightFormat format, Index n, Index k) {
  const Index columns = PanelLayout(n, tile).padded_columns();
  const Index scales = format == WeightFormat::int8 ? Index{sizeof(float)} * columns : 0;
  return static_cast<std::size_t>(cell_bytes(format) * columns * k + scales);
}

template <class Cell, class Visit>
void WeightPanels::over_row(Index row, Visit&& visit) const {
  const Index vector = row / layout_.lanes;
  Index panel = vector / layout_.width;
  if (panel + 1 < layout_.count() && layout_.first(panel + 1) <= vector) ++panel;
  const Index column = layout_.first(panel) * layout_.lanes;
  const Index width = layout_.panel_vectors(panel) * layout_.lanes;
  const Cell* cell = reinterpret_cast<const Cell*>(cells_.data()) + column * k_ + (row - column);
  for (Index p = 0; p < k_; ++p, cell += width) visit(p, *cell);
}

void WeightPanels::expand_row(Index row, float* values) const {
  switch (format_) {
    case WeightFormat::float32:
      return over_row<float>(row, [values](Index p, float cell) { values[p] = flush(cell); });
    case WeightFormat::bfloat16:
      return over_row<std::uint16_t>(
          row, [values](Index p, std::uint16_t cell) { values[p] = flush(expand_bfloat16(cell)); });
    default:
      break;
  }
  const float scale = scales_.data()[row];
  over_row<std::int8_t>(row, [values, scale](Index p, std::int8_t cell) { values[p] = expand_int8(cell, scale); });
}

template <class Cell>
void WeightPanels::copy_rows(Array& cells) const {
  auto* to = static_cast<Cell*>(cells.data());
  for (Index row = 0; row < layout_.n; ++row, to += k_) {
    over_row<Cell>(row, [to](Index p, Cell cell) { to[p] = cell; });
  }
}

Weight WeightPanels::stored() const {
  const Shape shape = {layout_.n, k_};
  if (format_ == WeightFormat::float32) {
    Array cells(DType::float32, shape);
    copy_rows<float>(cells);
    return cells;
  }
  if (format_ == WeightFormat::bfloat16) {
    Array cells(DType::uint16, shape);
    copy_rows<std::uint16_t>(cells);
    return PackedWeight(std::move(cells));
  }
  Array cells(DType::int8, shape);
  copy_rows<std::int8_t>(cells);
  Array exponents(DType::int32, {layout_.n});
  std::copy(exponents_.begin(), exponents_.end(), exponents.values<std::int32_t>().begin());
  return PackedWeight(std::move(cells), std::move(exponents));
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
  std::copy_n(exponents, layout_.n, exponents_.begin());
  std::transform(exponents, exponents + layout_.n, scales_.data(), power_of_two);
  std::fill(scales_.data() + layout_.n, scales_.data() + layout_.padded_columns(), 0.0F);
}

}  // namespace samba::cpu
