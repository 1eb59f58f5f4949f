// The memory that a model takes, as `samba inspect --memory` tells it (docs/memory.md).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "samba/train/memory_plan.h"

namespace samba::apps {

struct MemoryFlags {
  Index batch = 0;   // rows; 0: 1 to decode, 8 to train
  Index length = 0;  // tokens of a row; 0: 1024 to decode, 128 to train
};

// {"inference": {"weights", "panels", ..., "total", "batch", "positions"}, "training": {...} or null}, bytes. Training
// is null where `format` or the configuration allows inference only.
nlohmann::ordered_json memory_json(Executor& executor, const StackConfig& config, WeightFormat format,
                                   const OptimizerSettings& settings, const MemoryFlags& flags);
nlohmann::ordered_json plan_json(const MemoryPlan& plan);
std::string memory_table(const nlohmann::ordered_json& memory);

}  // namespace samba::apps
