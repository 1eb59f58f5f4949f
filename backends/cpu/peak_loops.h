// Loops that do nothing but run into a limit of the machine: what the benchmark compares kernels with.
#pragma once

#include <string>

#include "samba/core/array.h"

namespace samba::cpu {

// Fused multiply-adds in registers alone, on the calling thread: `rounds` rounds of independent chains. Returns the
// floating-point operations done (two a fused step and lane).
double run_fma_loop(const std::string& instruction_set, Index rounds);

// The sum of count floats in any order: reads each once and does as little else as possible.
float run_read_loop(const std::string& instruction_set, const float* values, Index count);

}  // namespace samba::cpu
