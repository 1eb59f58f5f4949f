#include "samba/train/state_fields.h"

#include "samba/core/error.h"
#include "samba/formats/canonical_json.h"

namespace samba::state_fields {

using Json = nlohmann::json;

void refuse(const std::string& source, const char* error_class, const std::string& reason) {
  refuse_corrupt(error_class, source + " cannot be loaded (" + error_class + "): " + reason);
}

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

std::string shown(const Json& value) {
  std::string text = value.is_binary() ? "an integer beyond 64 bits" : value.dump(-1, ' ', true);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

std::string shown(const Json& object, const char* name) {
  return object.contains(name) ? shown(object[name]) : "nothing";
}

double number(const Json& optimizer, const char* name, const std::string& source) {
  const Json& value = member(optimizer, name);
  if (!value.is_number()) {
    refuse(source, "optimizer", std::string("optimizer.") + name + " must be a number, got " + shown(optimizer, name));
  }
  return value.get<double>();
}

void parse_common_settings(const Json& optimizer, const std::string& source, OptimizerSettings& settings) {
  settings.lr = number(optimizer, "lr", source);
  settings.weight_decay = number(optimizer, "weight_decay", source);
  if (!optimizer.contains("max_norm")) refuse(source, "optimizer", "optimizer.max_norm is missing");
  if (!optimizer["max_norm"].is_null()) settings.max_norm = number(optimizer, "max_norm", source);
  const Json& steps = member(optimizer, "accumulation_steps");
  if (!is_count(steps, std::uint64_t{1} << 40)) {
    refuse(source, "optimizer",
           "optimizer.accumulation_steps must be a power of two, got " + shown(optimizer, "accumulation_steps"));
  }
  settings.accumulation_steps = steps.get<Index>();
}

void require_settings(const OptimizerSettings& settings, const std::string& source) {
  try {
    check_settings(settings);
  } catch (const Error& error) {
    refuse(source, "optimizer", error.what());
  }
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

std::optional<Schedule> parse_schedule(const Json& schedule, const std::string& source) {
  if (schedule.is_null()) return std::nullopt;
  try {
    return schedule_from_json(schedule, ScheduleKeys::checkpoint);
  } catch (const Error& error) {
    refuse(source, "schedule", error.what());
  }
}

}  // namespace samba::state_fields
