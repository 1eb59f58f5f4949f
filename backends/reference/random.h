// RandomKernels of the reference executor: plain scalar loops, straight from the spec.
#pragma once

#include "samba/kernels/random.h"

namespace samba::reference {

class RandomReference final : public RandomKernels {
 public:
  void uniform(std::uint64_t seed, std::uint32_t stream, Index n, float low, float high, float* out) override;
  void normal(std::uint64_t seed, std::uint32_t stream, Index n, float mean, float deviation, float* out) override;
  void dropout(const DropoutKey& key, Index n, const float* x, float* y) override;
  void residual_dropout(const DropoutKey& key, Index n, const float* x, const float* residual, float* y) override;
};

}  // namespace samba::reference
