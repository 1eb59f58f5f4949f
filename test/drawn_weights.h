// Packed weights of the tests, drawn at random: bfloat16 and int8 matrices, and rows of blocks as GGUF files hold them.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernel_twins.h"
#include "samba/numerics/block_weight.h"
#include "samba/numerics/packed_weight.h"

namespace samba {

// A packed matrix as pack makes it, or by hand: any bfloat16 pattern that is finite, subnormals included; any code and
// an exponent that may underflow.
inline PackedWeight draw_packed(Draws& draws, WeightFormat format, Index rows, Index columns, bool by_hand) {
  if (!by_hand) {
    Array values = Array::zeros({rows, columns});
    for (float& value : values.floats()) value = draws.value(Draw::mixed);
    return pack_one(values, format).packed();
  }
  if (format == WeightFormat::bfloat16) {
    Array bits(DType::uint16, {rows, columns});
    for (auto& cell : bits.values<std::uint16_t>()) {
      const std::uint32_t word = draws.word();
      cell = static_cast<std::uint16_t>(word % 4 == 0 ? word >> 16 & 0x807FU : (word >> 16 & 0x83FFU) | 0x3C00U);
    }
    return PackedWeight(std::move(bits));
  }
  Array codes(DType::int8, {rows, columns});
  Array exponents(DType::int32, {rows});
  for (auto& code : codes.values<std::int8_t>()) code = static_cast<std::int8_t>(draws.word() & 0xFFU);
  for (auto& exponent : exponents.values<std::int32_t>()) {
    exponent = static_cast<std::int32_t>(draws.below(3) == 0 ? -130 + draws.below(8) : -70 + draws.below(80));
  }
  return PackedWeight(std::move(codes), std::move(exponents));
}

// Where the halves of a block are that scale its codes.
inline std::vector<std::size_t> scales_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::q4_1:
    case WeightFormat::q5_1:
    case WeightFormat::q4_k:
    case WeightFormat::q5_k:
      return {0, 2};
    case WeightFormat::q6_k:
      return {208};
    default:
      return {0};
  }
}

struct DrawnBlocks {
  std::shared_ptr<std::vector<std::byte>> bytes;
  ConstPackedWeight view;
};

// Any codes; scales that are finite halves, zeros and subnormal ones among them.
inline DrawnBlocks draw_blocks(Draws& draws, WeightFormat format, Index rows, Index columns) {
  const BlockLayout layout = block_layout(format);
  const auto count = static_cast<std::size_t>(rows) * block_row_bytes(format, columns);
  DrawnBlocks drawn{std::make_shared<std::vector<std::byte>>(count), {}};
  std::vector<std::byte>& bytes = *drawn.bytes;
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(draws.word() & 0xFFU);
  for (std::size_t block = 0; block < count; block += layout.bytes) {
    for (const std::size_t at : scales_of(format)) {
      // Exponents from 2^-24 to 1; bfloat16's from subnormal to 2^1, by its own bits.
      std::uint32_t word = draws.word();
      if (format == WeightFormat::bfloat16) {
        word =
            word % 5 == 0 ? word & 0x807FU : (word & 0x807FU) | static_cast<std::uint32_t>(112 + draws.below(16)) << 7;
      } else {
        word = (word & 0x83FFU) | static_cast<std::uint32_t>(draws.below(16)) << 10;
      }
      bytes[block + at] = static_cast<std::byte>(word & 0xFFU);
      bytes[block + at + 1] = static_cast<std::byte>(word >> 8 & 0xFFU);
    }
  }
  drawn.view = ConstPackedWeight::of_blocks(format, rows, columns, bytes.data(), drawn.bytes);
  return drawn;
}

}  // namespace samba
