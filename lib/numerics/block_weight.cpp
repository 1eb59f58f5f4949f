#include "samba/numerics/block_weight.h"

#include "samba/core/error.h"
#include "samba/numerics/block_values.h"
#include "samba/numerics/packed_weight.h"

namespace samba {

namespace {

using block_values::Bytes;

template <class Value>
void expand_values(Bytes block, float* values, Value&& value) {
  for (int i = 0; i < 32; ++i) values[i] = value(block, i);
}

template <class Value>
void expand_groups(float* values, Value&& value) {
  for (int g = 0; g < 8; ++g) {
    for (int i = 0; i < 32; ++i) values[g * 32 + i] = value(g, i);
  }
}

void expand_block(WeightFormat format, Bytes block, float* values) {
  switch (format) {
    case WeightFormat::bfloat16:
    case WeightFormat::float16:
      *values = block_values::value(format, block, 0);
      return;
    case WeightFormat::q8_0:
      return expand_values(block, values, block_values::q8_0);
    case WeightFormat::q4_0:
      return expand_values(block, values, block_values::q4_0);
    case WeightFormat::q4_1:
      return expand_values(block, values, block_values::q4_1);
    case WeightFormat::q5_0:
      return expand_values(block, values, block_values::q5_0);
    case WeightFormat::q5_1:
      return expand_values(block, values, block_values::q5_1);
    case WeightFormat::q4_k:
      return expand_groups(values, [block](int g, int i) { return block_values::q_k(block, false, g, i); });
    case WeightFormat::q5_k:
      return expand_groups(values, [block](int g, int i) { return block_values::q_k(block, true, g, i); });
    case WeightFormat::q6_k:
      return expand_groups(values, [block](int g, int i) { return block_values::q6_k(block, g, i); });
    case WeightFormat::float32:
    case WeightFormat::int8:
      break;
  }
  throw Error(ErrorKind::internal, "blocks of a format without blocks");
}

}  // namespace

bool has_blocks(WeightFormat format) { return format != WeightFormat::float32 && format != WeightFormat::int8; }

BlockLayout block_layout(WeightFormat format) {
  switch (format) {
    case WeightFormat::bfloat16:
    case WeightFormat::float16:
      return {1, 2};
    case WeightFormat::q8_0:
      return {32, 34};
    case WeightFormat::q4_0:
      return {32, 18};
    case WeightFormat::q4_1:
      return {32, 20};
    case WeightFormat::q5_0:
      return {32, 22};
    case WeightFormat::q5_1:
      return {32, 24};
    case WeightFormat::q4_k:
      return {256, 144};
    case WeightFormat::q5_k:
      return {256, 176};
    case WeightFormat::q6_k:
      return {256, 210};
    case WeightFormat::float32:
    case WeightFormat::int8:
      break;
  }
  throw Error(ErrorKind::internal, "the layout of a format without blocks");
}

std::size_t block_row_bytes(WeightFormat format, std::int64_t columns) {
  const BlockLayout layout = block_layout(format);
  return static_cast<std::size_t>(columns / layout.values) * layout.bytes;
}

void expand_block_row(WeightFormat format, const std::byte* row, std::int64_t columns, float* values) {
  const BlockLayout layout = block_layout(format);
  auto block = reinterpret_cast<Bytes>(row);
  for (std::int64_t i = 0; i < columns; i += layout.values, block += layout.bytes) {
    expand_block(format, block, values + i);
  }
}

bool block_row_is_finite(WeightFormat format, const std::byte* row, std::int64_t columns) {
  const BlockLayout layout = block_layout(format);
  const bool two = format == WeightFormat::q4_1 || format == WeightFormat::q5_1 || format == WeightFormat::q4_k ||
                   format == WeightFormat::q5_k;
  const std::size_t first = format == WeightFormat::q6_k ? 208 : 0;
  const unsigned exponent = format == WeightFormat::bfloat16 ? 0x7F80U : 0x7C00U;  // of what is not finite
  const auto finite = [exponent](Bytes at) { return (block_values::word16(at) & exponent) != exponent; };
  Bytes block = reinterpret_cast<Bytes>(row) + first;
  for (std::int64_t i = 0; i < columns; i += layout.values, block += layout.bytes) {
    if (!finite(block) || (two && !finite(block + 2))) return false;
  }
  return true;
}

}  // namespace samba
