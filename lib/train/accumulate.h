// Gradient accumulation (spec 10 section 10): the parts of A microbatches meet in a balanced tree, F(F(left) +
// F(right)) over adjacent pairs, ascending; a single part is F(part).
#pragma once

#include <span>

#include "samba/core/array.h"
#include "samba/kernels/executor.h"

namespace samba {

// Refuses a number of pieces that is not a power of two, and, with tokens > 0 (of the whole step), a split that is not
// aligned. Error(value).
void check_accumulation(Index tokens, Index pieces);

// The sum is left in parts[0]; the other parts hold partial sums afterwards. parts: device pointers to n floats each.
void accumulate_in_place(Executor& executor, Index n, std::span<float* const> parts);

// parts (A, n), finite; returns (n). tokens: 0 when no count is given.
Array accumulate(Executor& executor, ConstArray parts, Index tokens = 0);

}  // namespace samba
