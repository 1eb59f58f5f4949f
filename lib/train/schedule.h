// Learning-rate schedules: every value is the float32 nearest the exact real number (spec 61 section 4).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "samba/core/array.h"

namespace samba {

enum class ScheduleKind { constant, linear, cosine };

// As a user gives it.
struct ScheduleFields {
  std::string kind;  // "constant", "linear", "cosine"
  double peak_lr = 0.0;
  double min_lr = 0.0;
  Index warmup_steps = 0;
  std::optional<Index> total_steps;
};

class Schedule {
 public:
  // Rounds the learning rates to float32. Error(value) that names the field.
  explicit Schedule(const ScheduleFields& fields);

  // The learning rate of step t, one-based; t < 1 is refused.
  float at(Index t) const;

  ScheduleKind kind() const { return kind_; }
  float peak_lr() const { return peak_lr_; }
  float min_lr() const { return min_lr_; }
  Index warmup_steps() const { return warmup_steps_; }
  std::optional<Index> total_steps() const { return total_steps_; }

  // {kind, min_lr, peak_lr, total_steps, warmup_steps}, learning rates as the doubles equal to their float32 values.
  nlohmann::json to_json() const;

  bool operator==(const Schedule&) const = default;

 private:
  ScheduleKind kind_ = ScheduleKind::constant;
  float peak_lr_ = 0.0F;
  float min_lr_ = 0.0F;
  Index warmup_steps_ = 0;
  std::optional<Index> total_steps_;
};

enum class ScheduleKeys {
  user,        // kind and peak_lr are required, the others have defaults
  checkpoint,  // all five keys are there
};

// Error(type) for a JSON type that does not fit, Error(value) for a missing, unknown or refused key.
Schedule schedule_from_json(const nlohmann::json& object, ScheduleKeys keys = ScheduleKeys::user);

}  // namespace samba
