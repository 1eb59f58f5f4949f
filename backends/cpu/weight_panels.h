// A weight laid out in panels (gemm.h), in the format it is stored in.
//
// The float32 panels of a weight [n, k] hold what the weight holds, in another order: element (j, p) is cell
//   first(panel) * lanes * k + p * width + (j - first(panel) * lanes),   width = panel_vectors(panel) * lanes
// of the panel with first(panel) * lanes <= j. A packed weight keeps its cells in the same places, and one scale a
// column; an expansion of cells is elementwise (packed_cells-inl.h), so a new format needs a Cells type there.
#pragma once

#include <vector>

#include "samba/backends/cpu/gemm_kernels.h"
#include "samba/kernels/linear.h"

namespace samba::cpu {

class WeightPanels final : public PreparedWeight {
 public:
  // Of a weight [n, k], empty.
  WeightPanels(HostMemory& memory, const TileShape& tile, WeightFormat format, Index n, Index k);

  Index rows() const override { return layout_.n; }
  Index columns() const override { return k_; }
  WeightFormat format() const override { return format_; }
  std::size_t byte_size() const override { return cells_.byte_size() + scales_.byte_size(); }

  static std::size_t bytes(const TileShape& tile, WeightFormat format, Index n, Index k);  // their byte_size()

  // Takes what the weight holds now. Allocates nothing.
  void fill(Context& context, const WeightView& weight);

  // values[p] = F(the expanded element (row, p)) for all p.
  void expand_row(Index row, float* values) const;
  // What was taken, bit for bit.
  Weight stored() const;

  const void* cells() const { return cells_.data(); }
  const float* scales() const { return scales_.data(); }  // of int8

 private:
  // visit(p, cell) for the cells of a row.
  template <class Cell, class Visit>
  void over_row(Index row, Visit&& visit) const;
  template <class Cell>
  void copy_rows(Array& cells) const;
  template <class Cell>
  void pack_cells(Context& context, const Cell* source);

  PanelLayout layout_;
  WeightFormat format_;
  Index k_;
  DeviceArray<std::byte> cells_;
  DeviceArray<float> scales_;
  std::vector<std::int32_t> exponents_;  // of int8, as they were given
};

}  // namespace samba::cpu
