// Inside lib/verify: parts of dense arrays.
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

}  // namespace samba::verify
