#include "samba/train/state_dictionary.h"

#include <cmath>

#include "samba/core/error.h"
#include "samba/formats/canonical_json.h"

namespace samba {

namespace {

using Json = nlohmann::json;

constexpr const char* kStateSchema = "mojolearn.samba-stack-state.v1";
constexpr const char* kProfile = "mojolearn.samba-stack.fp32.v1";
constexpr const char* kExperimentProfile = "baseline";
constexpr const char* kNumericProfile = "fp32_v1";
constexpr const char* kNumericMode = "identical";
constexpr const char* kOptimizerKind = "adamw";

[[noreturn]] void refuse(const std::string& source, const char* error_class, const std::string& reason) {
  refuse_corrupt(error_class, source + " cannot be loaded (" + error_class + "): " + reason);
}

// An integer in [0, most]. The library's own comparisons take integers above 2^63 for negative ones.
bool is_count(const Json& value, std::uint64_t most) {
  if (!is_integer(value)) return false;
  if (!value.is_number_unsigned() && value.get<std::int64_t>() < 0) return false;
  return value.get<std::uint64_t>() <= most;
}

const Json& member(const Json& object, const char* name) {
  static const Json kAbsent;
  const auto found = object.find(name);
  return found == object.end() ? kAbsent : *found;
}

// What a message shows of a value: a short text, not a screenful.
std::string shown(const Json& value) {
  std::string text = value.is_binary() ? "an integer beyond 64 bits" : value.dump(-1, ' ', true);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

// The same of a member that may be absent.
std::string shown(const Json& object, const char* name) {
  return object.contains(name) ? shown(object[name]) : "nothing";
}

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

double number(const Json& optimizer, const char* name, const std::string& source) {
  const Json& value = member(optimizer, name);
  if (!value.is_number()) {
    refuse(source, "optimizer", std::string("optimizer.") + name + " must be a number, got " + shown(optimizer, name));
  }
  return value.get<double>();
}

OptimizerSettings parse_optimizer(const Json& optimizer, const std::string& source) {
  OptimizerSettings settings;
  settings.lr = number(optimizer, "lr", source);
  settings.beta1 = number(optimizer, "beta1", source);
  settings.beta2 = number(optimizer, "beta2", source);
  settings.eps = number(optimizer, "eps", source);
  settings.weight_decay = number(optimizer, "weight_decay", source);
  if (!optimizer.contains("max_norm")) refuse(source, "optimizer", "optimizer.max_norm is missing");
  if (!optimizer["max_norm"].is_null()) settings.max_norm = number(optimizer, "max_norm", source);
  const Json& steps = member(optimizer, "accumulation_steps");
  if (!is_count(steps, std::uint64_t{1} << 40)) {
    refuse(source, "optimizer",
           "optimizer.accumulation_steps must be a power of two, got " + shown(optimizer, "accumulation_steps"));
  }
  settings.accumulation_steps = steps.get<Index>();
  try {
    check_settings(settings);
  } catch (const Error& error) {
    refuse(source, "optimizer", error.what());
  }
  return settings;
}

GeneratorState parse_generator(const Json& rng, const std::string& source) {
  const Json& seed = member(rng, "seed");
  const Json& counter = member(rng, "counter");
  if (!is_count(seed, UINT64_MAX)) {
    refuse(source, "rng", "rng.seed must be an integer in [0, 2^64), got " + shown(rng, "seed"));
  }
  if (!is_count(counter, Generator::kStreams)) {
    refuse(source, "rng", "rng.counter must be an integer in [0, 2^32], got " + shown(rng, "counter"));
  }
  return {seed.get<std::uint64_t>(), counter.get<std::uint64_t>()};
}

}  // namespace

Json state_dictionary(const SambaTrainer& trainer) {
  const OptimizerSettings& settings = trainer.optimizer().settings();
  const auto& schedule = trainer.optimizer().schedule();
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
          {"config", config_to_json(trainer.stack().config())},
          {"registry", trainer.stack().registry().to_json()},
          {"t", trainer.completed_steps()},
          {"optimizer", optimizer},
          {"schedule", schedule ? schedule->to_json() : Json()},
          {"rng", {{"seed", trainer.generator().seed()}, {"counter", trainer.generator().counter()}}}};
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
  if (!state["schedule"].is_null()) {
    try {
      training.schedule = schedule_from_json(state["schedule"], ScheduleKeys::checkpoint);
    } catch (const Error& error) {
      refuse(source, "schedule", error.what());
    }
  }
  require_profile(state, "experiment_profile", kExperimentProfile, source);
  require_profile(state, "numeric_profile", kNumericProfile, source);
  training.generator = parse_generator(state["rng"], source);
  return training;
}

}  // namespace samba
