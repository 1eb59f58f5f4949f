// Draws from the position-keyed stream (spec 10 section 9): element i is a function of (seed, stream, first + i).
#pragma once

#include "samba/core/array.h"

namespace samba {

struct DropoutKey {
  std::uint64_t seed = 0;
  std::uint32_t stream = 0;
  std::uint64_t offset = 0;  // element index of the first value
  float p = 0.0F;
  float scale = 1.0F;
};

class RandomKernels {
 public:
  virtual ~RandomKernels() = default;

  virtual void uniform(std::uint64_t seed, std::uint32_t stream, Index n, float low, float high, float* out) = 0;
  virtual void normal(std::uint64_t seed, std::uint32_t stream, Index n, float mean, float deviation, float* out) = 0;

  // y = coin >= p ? F(F(x) * scale) : +0; its backward is the same call on dy. y may be x.
  virtual void dropout(const DropoutKey& key, Index n, const float* x, float* y) = 0;
  // y = F(F(residual) + F(dropped value)); the key's scale is the residual one (spec 10 section 9.4).
  virtual void residual_dropout(const DropoutKey& key, Index n, const float* x, const float* residual, float* y) = 0;
};

}  // namespace samba
