#pragma once

#include "samba/kernels/fixed15.h"

namespace samba::reference {

class Fixed15Reference final : public Fixed15Kernels {
 public:
  void quantize(Index rows, Index k, const float* x, std::int16_t* codes, std::int32_t* exponents) override;
  std::unique_ptr<PreparedWeight> prepare(Index n, Index k, const float* weight) override;
  void refresh(PreparedWeight& prepared, const float* weight) override;
  void linear(const PreparedWeight& weight, Index m, const float* x, float* y) override;
};

// The exact sum of the products of two rows of codes.
std::int64_t fixed15_dot(Index k, const std::int16_t* a, const std::int16_t* b);
// codes[k] of one row; returns its exponent.
std::int32_t quantize_row(Index k, const float* x, std::int16_t* codes);

}  // namespace samba::reference
