// Runners of the kinds of cases, by family.
#pragma once

#include "samba/verify/runner.h"

namespace samba::verify {

// core (core_cases.cpp, generator_cases.cpp)
void run_math(RunContext& run);
void run_gemm(RunContext& run);
void run_linear(RunContext& run);
void run_rms_norm(RunContext& run);
void run_layer_norm_block(RunContext& run);
void run_layer_norm_functional(RunContext& run);
void run_embedding(RunContext& run);
void run_accumulate(RunContext& run);
void run_accumulation_is_aligned(RunContext& run);
void run_generator(RunContext& run);

}  // namespace samba::verify
