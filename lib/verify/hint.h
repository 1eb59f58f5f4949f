// What may have gone wrong where a result left the record: the usual deviations (a flush that is missing, a fused step
// in the wrong place, another order of a sum, another leaf, a library's function) are tried on the element, from inputs
// that the case holds.
#pragma once

#include <string>

#include "samba/verify/case_file.h"
#include "samba/verify/compare.h"

namespace samba::verify {

// A sentence, or "" for a difference that is none of a float tensor. `tensors`: those of the case, by their full names.
std::string divergence_hint(const Difference& difference, const TensorSet& tensors);

}  // namespace samba::verify
