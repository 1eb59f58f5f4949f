// The matrix product of the cpu executor (spec 10 sections 3, 4 and 11).
//
// Both operands are packed: A into tiles of R rows, [K][R]; B into panels of V vectors of columns, [K][V * lanes]. A
// block of rows walks the leaves of one panel together, so that a leaf of the panel stays in the first-level cache and
// the partial tiles wait in the second. Threads take blocks and panels; no cell is ever split.
//
// The panels of a weight in bfloat16 or int8 keep its cells. A single tile of rows expands them in registers, so that
// decoding reads half or a quarter of the bytes; a block of several tiles expands a leaf of the panel once.
#pragma once

#include <bit>

#include "samba/backends/cpu/context.h"
#include "samba/kernels/linear.h"

namespace samba::cpu {

// The register tile of an instruction set.
struct TileShape {
  Index rows;     // R
  Index columns;  // V * lanes
  Index lanes;
};

// Levels of waiting partials that `leaves` leaves can need.
inline Index tree_levels(Index leaves) { return std::bit_width(static_cast<std::uint64_t>(leaves)); }

struct PackedProduct {
  Index m, n, k;
  const float* a;  // tile i starts at a + i * R * k
  WeightFormat format;
  const void* b;        // cells of the format; panel j starts at cell j * V * lanes * k
  const float* scales;  // of int8: 2^exponent of each column
  float* c;             // [m, n]
};

class LinearCpu final : public LinearKernels {
 public:
  explicit LinearCpu(Context& context) : context_(context) {}

  void gemm(Layout layout, Index m, Index n, Index k, const float* a, const float* b, float* c) override;
  std::unique_ptr<PreparedWeight> prepare(Index n, Index k, const float* weight) override;
  std::unique_ptr<PreparedWeight> prepare(const ConstPackedWeight& weight) override;
  void refresh(PreparedWeight& prepared, const WeightView& weight) override;
  void linear(const PreparedWeight& weight, Index m, const float* x, float* y) override;
  void expand(const ConstPackedWeight& packed, float* values) override;
  void add_bias(Index m, Index n, const float* bias, float* y) override;
  void column_sum(Index rows, Index width, const float* v, float* out) override;
  float dot(Index n, const float* a, const float* b) override;
  float sum(Index n, const float* x) override;

 private:
  // Memory that is kept between calls and only grows.
  float* packed_a(Index count);
  float* packed_b(Index count);

  Context& context_;
  HostMemory memory_;
  DeviceArray<float> packed_a_;
  DeviceArray<float> packed_b_;
};

}  // namespace samba::cpu
