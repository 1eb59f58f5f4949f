// The memory that a model takes, from its configuration alone (docs/memory.md): the stack, its state, the optimizer and
// one call are made on an executor that only counts (kernels/dry_executor.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "samba/kernels/executor.h"
#include "samba/model/stack_config.h"
#include "samba/numerics/packed_weight.h"
#include "samba/train/optimizer.h"

namespace samba {

// Bytes.
struct MemoryPlan {
  std::uint64_t weights = 0;    // as they are stored: in training all, for inference what is not laid out
  std::uint64_t panels = 0;     // matrices laid out for the products of the executor
  std::uint64_t moments = 0;    // of the optimizer
  std::uint64_t gradients = 0;  // one buffer, and those of accumulation
  std::uint64_t states = 0;     // decode states and rotary tables
  std::uint64_t workspace = 0;  // what the largest call takes and gives back

  std::uint64_t total() const { return weights + panels + moments + gradients + states + workspace; }
};

// Decoding `batch` rows of up to `positions` tokens, their prompts read in calls of at most `chunk` tokens.
struct InferenceCall {
  WeightFormat format = WeightFormat::float32;  // of the matrices
  Index batch = 1;
  Index positions = 1024;
  Index chunk = 512;
  std::vector<WeightFormat> formats = {};  // of every tensor of the registry, where they differ; empty: `format`
};
MemoryPlan plan_inference(Executor& executor, const StackConfig& config, const InferenceCall& call);

// Steps on `batch` rows of `length` tokens (settings.accumulation_steps parts of them at a time).
MemoryPlan plan_training(Executor& executor, const StackConfig& config, const OptimizerSettings& settings, Index batch,
                         Index length, std::optional<Index> activation_budget = std::nullopt);

}  // namespace samba
