#include "samba/train/state_dictionary.h"

#include "samba/core/error.h"
#include "samba/formats/canonical_json.h"
#include "samba/train/model_state.h"
#include "samba/train/state_fields.h"

namespace samba {

namespace {

using Json = nlohmann::json;
using namespace state_fields;

constexpr const char* kStateSchema = "mojolearn.samba-stack-state.v1";
constexpr const char* kProfile = "mojolearn.samba-stack.fp32.v1";
constexpr const char* kExperimentProfile = "baseline";
constexpr const char* kNumericProfile = "fp32_v1";
constexpr const char* kNumericMode = "identical";
constexpr const char* kOptimizerKind = "adamw";

void require_equal(const Json& state, const char* name, const char* wanted, const std::string& source,
                   const char* error_class) {
  if (member(state, name) != wanted) {
    refuse(source, error_class, std::string(name) + " must be \"" + wanted + "\", got " + shown(state, name));
  }
}

// A profile that may be absent.
void require_profile(const Json& state, const char* name, const char* wanted, const std::string& source) {
  if (state.contains(name)) require_equal(state, name, wanted, source, name);
}

OptimizerSettings parse_optimizer(const Json& optimizer, const std::string& source) {
  OptimizerSettings settings;
  settings.beta1 = number(optimizer, "beta1", source);
  settings.beta2 = number(optimizer, "beta2", source);
  settings.eps = number(optimizer, "eps", source);
  parse_common_settings(optimizer, source, settings);
  require_settings(settings, source);
  return settings;
}

}  // namespace

Json state_dictionary(const SambaTrainer& trainer) { return samba_state_json(model_state(trainer)); }

Json samba_state_json(const ModelState& state) {
  const TrainingState& training = state.training.value();
  const SambaConfig& config = state.config.samba.value();
  const OptimizerSettings& settings = training.optimizer;
  const Json optimizer = {{"kind", kOptimizerKind},
                          {"lr", settings.lr},
                          {"beta1", settings.beta1},
                          {"beta2", settings.beta2},
                          {"eps", settings.eps},
                          {"weight_decay", settings.weight_decay},
                          {"max_norm", settings.max_norm ? Json(*settings.max_norm) : Json()},
                          {"accumulation_steps", settings.accumulation_steps}};
  return {{"schema", kStateSchema},
          {"profile", kProfile},
          {"experiment_profile", kExperimentProfile},
          {"numeric_mode", kNumericMode},
          {"config", config_to_json(config)},
          {"registry", Registry(config).to_json()},
          {"t", state.step},
          {"optimizer", optimizer},
          {"schedule", training.schedule ? training.schedule->to_json() : Json()},
          {"rng", {{"seed", training.generator.seed}, {"counter", training.generator.counter}}}};
}

SambaConfig parse_state_config(const Json& state, const std::string& source) {
  if (!state.is_object()) refuse(source, "state_schema", "the state must be an object");
  require_equal(state, "schema", kStateSchema, source, "state_schema");
  require_equal(state, "profile", kProfile, source, "state_schema");
  try {
    return config_from_json(member(state, "config"), ConfigKeys::checkpoint);
  } catch (const Error& error) {
    refuse(source, "config", error.what());
  }
}

Registry parse_state_registry(const Json& state, const SambaConfig& config, const std::string& source) {
  try {
    Registry registry(config);
    // The canonical text tells 8.0 from 8 and true from 1, which comparing values would not.
    if (canonical_json(member(state, "registry")) == canonical_json(registry.to_json())) return registry;
  } catch (const Error& error) {
    refuse(source, "registry", error.what());
  }
  refuse(source, "registry", "the registry is not the one of its configuration");
}

void check_state_metadata(const Json& state, const std::string& source) {
  const Json& t = member(state, "t");
  if (!is_count(t, INT64_MAX - 1)) {
    refuse(source, "metadata", "t must be an integer, at least 0, got " + shown(state, "t"));
  }
  const Json& optimizer = member(state, "optimizer");
  if (!optimizer.is_object())
    refuse(source, "metadata", "optimizer must be an object, got " + shown(state, "optimizer"));
  if (member(optimizer, "kind") != kOptimizerKind) {
    refuse(source, "metadata", "optimizer.kind must be \"adamw\", got " + shown(optimizer, "kind"));
  }
  const Json& rng = member(state, "rng");
  if (!rng.is_object()) refuse(source, "metadata", "rng must be an object, got " + shown(state, "rng"));
  const Json& mode = member(state, "numeric_mode");
  if (mode != kNumericMode && mode != "fast") {
    refuse(source, "metadata", "numeric_mode must be \"identical\" or \"fast\", got " + shown(state, "numeric_mode"));
  }
  const Json& schedule = member(state, "schedule");
  if (!state.contains("schedule") || !(schedule.is_null() || schedule.is_object())) {
    refuse(source, "metadata", "schedule must be null or an object, got " + shown(state, "schedule"));
  }
}

TrainingState parse_training_state(const Json& state, const std::string& source) {
  TrainingState training;
  require_equal(state, "numeric_mode", kNumericMode, source, "numeric_mode");
  training.completed_steps = state["t"].get<Index>();
  training.optimizer = parse_optimizer(state["optimizer"], source);
  training.schedule = parse_schedule(state["schedule"], source);
  require_profile(state, "experiment_profile", kExperimentProfile, source);
  require_profile(state, "numeric_profile", kNumericProfile, source);
  training.generator = parse_generator(state["rng"], source);
  return training;
}

}  // namespace samba
