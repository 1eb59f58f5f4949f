// The state of a stack in training without its arrays, as JSON (spec 60 section 9, spec 62 section 2), and the checks
// of spec 62 section 4 on it.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "samba/model/registry.h"
#include "samba/model/samba_config.h"
#include "samba/numerics/generator.h"
#include "samba/train/optimizer.h"
#include "samba/train/trainer.h"

namespace samba {

nlohmann::json state_dictionary(const SambaTrainer& trainer);

// Every refusal is Error(corrupt) of the class named; `source` is the file the messages speak of.

// state_schema, config.
SambaConfig parse_state_config(const nlohmann::json& state, const std::string& source);
// registry. Returns the registry of the config.
Registry parse_state_registry(const nlohmann::json& state, const SambaConfig& config, const std::string& source);
// metadata.
void check_state_metadata(const nlohmann::json& state, const std::string& source);

struct TrainingState {
  Index completed_steps = 0;
  OptimizerSettings optimizer;
  std::optional<Schedule> schedule;
  GeneratorState generator;
};
// numeric_mode, optimizer, schedule, experiment_profile, numeric_profile, rng.
TrainingState parse_training_state(const nlohmann::json& state, const std::string& source);

}  // namespace samba
