// The matrix product of numeric_profile fixed15_v1 (spec 20 section 10), in which every NT of a transformer block is
//   c[i, j] = F(float32(sum over k of qa[i, k] * qb[j, k]) * 2^(ea[i] + eb[j]))
// with the codes q and the exponents e of quantised rows. The sum is exact, so that nothing of its order shows.
#pragma once

#include <cstdint>
#include <memory>

#include "samba/core/array.h"
#include "samba/kernels/linear.h"

namespace samba {

class Fixed15Kernels {
 public:
  virtual ~Fixed15Kernels() = default;

  // codes[rows, k], within +-16383, and exponents[rows] of x[rows, k]. A row's depend on that row alone.
  virtual void quantize(Index rows, Index k, const float* x, std::int16_t* codes, std::int32_t* exponents) = 0;

  // A weight[n, k], quantised once; later edits of the weight are seen after refresh(), which allocates nothing.
  virtual std::unique_ptr<PreparedWeight> prepare(Index n, Index k, const float* weight) = 0;
  virtual void refresh(PreparedWeight& prepared, const float* weight) = 0;
  // y[m, n] = x[m, k] W^T, the rows of x quantised. k <= kLongestFixed15Sum (samba/numerics/fixed15.h).
  virtual void linear(const PreparedWeight& weight, Index m, const float* x, float* y) = 0;
};

}  // namespace samba
