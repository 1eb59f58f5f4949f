// Products of one x side by side, with what follows a product done while its cells are at hand: an offer that
// LinearKernels of some executors make beside linear() (a dynamic_cast finds it). Every step is rounded and flushed as
// the call of its own that it stands for.
#pragma once

#include <span>

#include "samba/kernels/linear.h"

namespace samba {

// y[m, n] = x W^T; with a bias then add_bias(); with a residual[m, n] then y = F(F(residual) + F(y)). The residual is
// not y.
struct LinearTerm {
  const PreparedWeight* weight = nullptr;
  float* y = nullptr;
  const float* bias = nullptr;
  const float* residual = nullptr;
};

class LinearGroups {
 public:
  virtual ~LinearGroups() = default;

  // At most kMostTerms terms, of weights of one input width.
  static constexpr std::size_t kMostTerms = 4;
  virtual void linear_group(Index m, const float* x, std::span<const LinearTerm> terms) = 0;

  // gate and up, then swiglu_forward(gate.y, up.y) into act and gated; act may be gate.y, gated may be up.y. Both
  // weights have one size.
  virtual void linear_swiglu(Index m, const float* x, const LinearTerm& gate, const LinearTerm& up, float* act,
                             float* gated) = 0;
};

}  // namespace samba
