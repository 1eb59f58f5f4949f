// LinearKernels of the reference executor: plain scalar loops, straight from the spec.
#pragma once

#include "samba/kernels/linear.h"

namespace samba::reference {

class LinearReference final : public LinearKernels {
 public:
  void gemm(Layout layout, Index m, Index n, Index k, const float* a, const float* b, float* c) override;
  std::unique_ptr<PreparedWeight> prepare(Index n, Index k, const float* weight) override;
  std::unique_ptr<PreparedWeight> prepare(const ConstPackedWeight& weight) override;
  void refresh(PreparedWeight& prepared, const WeightView& weight) override;
  void linear(const PreparedWeight& weight, Index m, const float* x, float* y) override;
  std::size_t prepared_bytes(WeightFormat format, Index n, Index k) const override;
  void gather_rows(const PreparedWeight& weight, Index count, const std::int32_t* rows, float* values) override;
  Weight stored(const PreparedWeight& weight) override;
  void expand(const ConstPackedWeight& packed, float* values) override;
  void add_bias(Index m, Index n, const float* bias, float* y) override;
  void column_sum(Index rows, Index width, const float* v, float* out) override;
  float dot(Index n, const float* a, const float* b) override;
  float sum(Index n, const float* x) override;
};

}  // namespace samba::reference
