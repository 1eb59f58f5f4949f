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

// blocks (block_cases.cpp)
void run_block(RunContext& run);

// samba (training_cases.cpp, stack_cases.cpp, stack_refusals.cpp)
void run_cross_entropy(RunContext& run);
void run_clip_grad_norm(RunContext& run);
void run_chunked_lm_head_loss(RunContext& run);
void run_optimizer(RunContext& run);
void run_schedules(RunContext& run);
void run_init(RunContext& run);
void run_stack_train(RunContext& run);
void run_tutorial(RunContext& run);
void run_stack_refusal(RunContext& run);
void run_checkpoint_variants(RunContext& run);

// lowbit (lowbit_cases.cpp)
void run_lowbit_pack(RunContext& run);
void run_lowbit_expand(RunContext& run);
void run_stack_forward(RunContext& run);

// mlp (mlp_cases.cpp)
void run_mlp_logits(RunContext& run);
void run_mlp_train(RunContext& run);
void run_mlp_checkpoint_variants(RunContext& run);

// hashes (hash_suites.cpp, hash_stacks.cpp)
void run_hash_block(RunContext& run);
void run_samba_train(RunContext& run);
void run_samba_infer(RunContext& run);

// columns (column_lanes.cpp)
void run_column(RunContext& run);

}  // namespace samba::verify
