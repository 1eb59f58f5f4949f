// Linear layers and products of the cpu executor (spec 10 sections 3, 4 and 11). The product itself is gemm.h.
#pragma once

#include "samba/backends/cpu/context.h"
#include "samba/backends/cpu/gemm.h"
#include "samba/kernels/linear_groups.h"

namespace samba::cpu {

class LinearCpu final : public LinearKernels, public LinearGroups {
 public:
  explicit LinearCpu(Context& context) : context_(context) {}

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

  void linear_group(Index m, const float* x, std::span<const LinearTerm> terms) override;
  void linear_swiglu(Index m, const float* x, const LinearTerm& gate, const LinearTerm& up, float* act,
                     float* gated) override;

 private:
  float* kept(DeviceArray<float>& array, Index count);

  Context& context_;
  HostMemory memory_;
  DeviceArray<float> packed_a_, packed_b_;  // kept between calls, they only grow
};

}  // namespace samba::cpu
