// The integer product of the cpu executor (spec 20 section 10).
//
// Codes are kept in pairs, two of 16 bits in the 32 bits of a lane, as the pair products of the instruction sets take
// them (pmaddwd; vpdpwssd where the machine has it): A in tiles of R rows, [pairs][R]; B in panels of V vectors of
// columns, [pairs][V * lanes]. How many products 32 bits hold is read off the data: by the Cauchy-Schwarz inequality
// the sum over a group of terms is at most the product of the norms of the two rows there.
#pragma once

#include <array>
#include <cstdint>

#include "samba/backends/cpu/context.h"
#include "samba/kernels/fixed15.h"

namespace samba::cpu {

// Groups of 64, 32, 16 terms that a row may be summed in; 8 terms always fit.
inline constexpr std::array<Index, 3> kFixed15Groups = {64, 32, 16};
// Of some rows, for each size of a group: the largest sum of squares of codes over an aligned group.
using Fixed15Norms = std::array<std::uint64_t, kFixed15Groups.size()>;

struct Fixed15Product {
  Index m, n, pairs;
  const std::int32_t* a;  // tile i starts at a + i * R * pairs
  const std::int32_t* a_exponents;
  const Fixed15Norms* a_norms;  // of each tile
  const std::int32_t* b;        // panel j starts at b + j * V * lanes * pairs
  const std::int32_t* b_exponents;
  const Fixed15Norms* b_norms;  // of each panel
  float* c;                     // [m, n]
};

// Rows to be quantised and packed as one tile or panel of `width` rows, of which `rows` are there.
struct Fixed15Packing {
  const float* x;  // [rows, k]
  Index rows, k, width;
  std::int16_t* codes;  // room for one row, k rounded up to pairs
  std::int32_t* packed;
  std::int32_t* exponents;  // [width]; 0 for rows that are not there
  Fixed15Norms* norms;
};

class Fixed15Cpu final : public Fixed15Kernels {
 public:
  explicit Fixed15Cpu(Context& context);

  void quantize(Index rows, Index k, const float* x, std::int16_t* codes, std::int32_t* exponents) override;
  std::unique_ptr<PreparedWeight> prepare(Index n, Index k, const float* weight) override;
  void refresh(PreparedWeight& prepared, const float* weight) override;
  void linear(const PreparedWeight& weight, Index m, const float* x, float* y) override;

 private:
  Context& context_;
  HostMemory memory_;
  bool has_vnni_;
  // Kept between calls, they only grow.
  DeviceArray<std::int32_t> packed_, exponents_;
  DeviceArray<Fixed15Norms> norms_;
};

}  // namespace samba::cpu
