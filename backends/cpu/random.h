// Random values of the cpu executor: philox blocks in lanes, threads over elements.
#pragma once

#include "samba/backends/cpu/context.h"
#include "samba/kernels/random.h"

namespace samba::cpu {

class RandomCpu final : public RandomKernels {
 public:
  explicit RandomCpu(Context& context) : context_(context) {}

  void uniform(std::uint64_t seed, std::uint32_t stream, Index n, float low, float high, float* out) override;
  void normal(std::uint64_t seed, std::uint32_t stream, Index n, float mean, float deviation, float* out) override;
  void dropout(const DropoutKey& key, Index n, const float* x, float* y) override;
  void residual_dropout(const DropoutKey& key, Index n, const float* x, const float* residual, float* y) override;

 private:
  Context& context_;
};

}  // namespace samba::cpu
