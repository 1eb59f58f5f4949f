// Inside lib/verify: parts of dense arrays, and arrays of tokens.
#pragma once

#include <span>

#include "samba/core/array.h"

namespace samba::verify {

// The positions [from, to) of an axis.
Array slice(ConstArray array, std::size_t axis, Index from, Index to);
// Arrays side by side along an axis; their other axes are equal.
Array join(std::span<const Array> parts, std::size_t axis);
Array reshaped(ConstArray array, Shape shape);  // the same number of elements
// The index of the largest value, the lowest on ties.
Index argmax(std::span<const float> values);

// int32 (batch, length).
Array token_array(Index batch, Index length, std::span<const std::int32_t> ids);

}  // namespace samba::verify
