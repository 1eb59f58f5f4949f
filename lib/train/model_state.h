// What a checkpoint says of a model beside its arrays, in either of the two forms in which files hold it: the state of
// the Samba archive (state_dictionary.h) and the state of samba.stack.v1 (docs/formats/stack.md).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "samba/model/stack_config.h"
#include "samba/numerics/packed_weight.h"
#include "samba/train/state_dictionary.h"

namespace samba {

struct ModelState {
  StackConfig config;
  std::string numeric_mode = "identical";
  Index step = 0;                         // completed optimizer steps
  std::optional<TrainingState> training;  // absent: the model is for inference only
};

ModelState model_state(const SambaTrainer& trainer);

// True when the Samba archive can hold it: a Samba stack, in training with AdamW, mode identical.
bool fits_samba_archive(const ModelState& state);

// The state of the Samba archive of a model that fits it.
nlohmann::json samba_state_json(const ModelState& state);

// The state of samba.stack.v1.
nlohmann::json stack_state_json(const ModelState& state, WeightFormat format);
// Its parse; find_stack_state_fault has passed. Error(corrupt): classes config, and for training numeric_mode,
// optimizer, schedule, rng. Without `for_training` those fields are dropped.
ModelState parse_stack_state(const nlohmann::json& state, const std::string& source, bool for_training);

// Names of the moments that a model with this optimizer has, in the order of the file, without "buf_initialized".
std::vector<std::string> moment_prefixes(OptimizerKind kind);  // {"exp_avg.", "exp_avg_sq."}
// A run goes on in the mode that it was trained in: Error(value) of class numeric_mode for another.
void require_trained_mode(const std::string& trained, NumericMode mode, const std::string& source);
inline constexpr const char* kInitializedName = "buf_initialized";

}  // namespace samba
