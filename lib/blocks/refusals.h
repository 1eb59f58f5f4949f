// Refusals that the blocks and their checked interface share; each names the array.
#pragma once

#include <string>

#include "samba/core/array.h"
#include "samba/core/numeric_mode.h"

namespace samba {

// Error(type) unless float32, Error(value) unless of the shape wanted.
void refuse_other_dtype(const std::string& name, const ConstArray& array);
void refuse_other_array(const std::string& name, const ConstArray& array, const Shape& wanted);

// Error(value): "NaN in <name> at flat index <i>", "infinity in <name> at flat index <i>".
[[noreturn]] void refuse_non_finite(const std::string& name, float value, Index flat_index);

// What a block does not offer in a numeric mode of its executor, Error(unsupported): gradients in deterministic, tapes
// in any but identical.
void refuse_backward_mode(NumericMode mode);
void refuse_tape_mode(NumericMode mode);

// Refuses the first NaN or infinity of host values, tested by bits.
void check_finite(const std::string& name, std::span<const float> values);

}  // namespace samba
