// The memory that a model takes, as `samba inspect --memory` tells it (docs/memory.md).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "samba/train/memory_plan.h"
#include "samba/train/train_config.h"

namespace samba::apps {

struct MemoryFlags {
  Index batch = 0;   // rows; 0: 1 to decode, those of TrainingCall to train
  Index length = 0;  // tokens of a row; 0: 1024 to decode, those of TrainingCall to train
};

// The step whose memory is counted where no flag says another one.
struct TrainingCall {
  OptimizerSettings optimizer;
  BatchConfig batch;
  std::optional<Index> activation_budget;
};

// What a process holds beside the model, measured in this one.
struct AroundModel {
  std::uint64_t program = 0;    // the program, its libraries, its threads
  std::uint64_t tokenizer = 0;  // what text comes in and goes out by
};

// {"inference": {"weights", "panels", ..., "program", "tokenizer", "total", "batch", "positions"}, "training": {...} or
// null}, bytes. Training is null where the formats or the configuration allow inference only. `formats`: in which the
// tensors are taken; empty for float32.
nlohmann::ordered_json memory_json(Executor& executor, const StackConfig& config, std::vector<WeightFormat> formats,
                                   const TrainingCall& training, const MemoryFlags& flags, const AroundModel& around);
nlohmann::ordered_json plan_json(const MemoryPlan& plan, const AroundModel& around);
std::string memory_table(const nlohmann::ordered_json& memory);

}  // namespace samba::apps
