// The whole resumable state of a small MLP in training, as plain host data (spec 50 sections B1, B4, B5).
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "samba/blocks/mlp/small_mlp.h"
#include "samba/train/optimizer.h"

namespace samba {

inline constexpr Index kMlpMostSteps = 2147483647;  // 2^31 - 1

struct MlpState {
  std::vector<float> weights;              // kMlpParameters, the flat order of mlp_tensors()
  std::vector<float> exp_avg, exp_avg_sq;  // m and v
  std::array<std::int32_t, 4> flags{};     // kept as they were read
  Index step = 0;                          // steps completed
  OptimizerSettings settings;              // float32 values
  nlohmann::json data_schedule;            // stored and returned, never interpreted
};

// The hyperparameters rounded to float32 once. Error(value): "<name> must be finite float32", "requires lr > 0, eps > 0
// and weight_decay >= 0", "betas must remain in [0, 1) in float32"; a choice that the MLP does not have (another kind
// than adamw, clipping, accumulation, maximize) is Error(unsupported).
OptimizerSettings rounded_mlp_settings(const OptimizerSettings& settings);

// Everything that must hold of a state, whoever made it: counts, finite values, nonnegative v, binary flags, the range
// of the step, the settings and the schedule. Error(value).
void check_mlp_state(const MlpState& state);

// A description of the order of the data that goes with the state: a nonempty JSON object. Error(value) "data_schedule
// must be a nonempty JSON object"; "is too complex" (128 values in all, 8 levels); "string is too large" (2048 code
// points); "integer is too large" (4096 bits); "exceeds 2048 bytes" of canonical JSON.
void check_data_schedule(const nlohmann::json& schedule);

// A schedule from JSON text. Error(value) when it is not strict JSON; integers keep all their digits.
nlohmann::json parse_data_schedule(const std::string& text);

}  // namespace samba
