#include "samba/train/optimizer.h"

#include <algorithm>
#include <cmath>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/model/samba_stack.h"
#include "samba/numerics/elementary.h"
#include "samba/train/accumulate.h"
#include "samba/train/rank_group.h"

namespace samba {

namespace {

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "infinity" : "-infinity";
  return std::to_string(value);
}

void require(bool accepted, const char* name, const char* rule, double value) {
  if (!accepted) refuse_value(std::string(name) + " must be " + rule + ", got " + number_text(value));
}

// b^t by squaring, each product rounded and flushed (spec 61 section 2 step 4).
float integer_power(float base, Index t) {
  float power = 1.0F;
  for (; t > 0; t >>= 1) {
    if ((t & 1) != 0) power = flush(power * base);
    base = flush(base * base);
  }
  return power;
}

float negated(float value) { return from_bits(to_bits(value) ^ kSignBit); }

}  // namespace

OptimizerKind optimizer_kind(const std::string& name) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::sgd}) {
    if (name == optimizer_kind_name(kind)) return kind;
  }
  refuse_value("an optimizer is \"adamw\", \"adam\" or \"sgd\", got \"" + name + "\"");
}

std::string optimizer_kind_name(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adamw:
      return "adamw";
    case OptimizerKind::adam:
      return "adam";
    case OptimizerKind::sgd:
      return "sgd";
  }
  throw Error(ErrorKind::internal, "unknown optimizer kind");
}

OptimizerSettings OptimizerSettings::defaults(OptimizerKind kind) {
  OptimizerSettings settings;
  settings.kind = kind;
  if (kind != OptimizerKind::adamw) settings.weight_decay = 0.0;
  return settings;
}

void check_settings(const OptimizerSettings& settings) {
  require(std::isfinite(settings.lr), "lr", "finite", settings.lr);
  require(std::isfinite(settings.weight_decay), "weight_decay", "finite", settings.weight_decay);
  if (settings.kind == OptimizerKind::sgd) {
    require(std::isfinite(settings.momentum) && settings.momentum >= 0.0, "momentum", "finite and at least 0",
            settings.momentum);
    require(std::isfinite(settings.dampening), "dampening", "finite", settings.dampening);
    if (settings.nesterov && !(settings.momentum > 0.0 && settings.dampening == 0.0)) {
      refuse_value("nesterov needs momentum greater than 0 and dampening 0, got momentum " +
                   number_text(settings.momentum) + ", dampening " + number_text(settings.dampening));
    }
  } else {
    require(settings.beta1 >= 0.0 && settings.beta1 < 1.0, "beta1", "in [0, 1)", settings.beta1);
    require(settings.beta2 >= 0.0 && settings.beta2 < 1.0, "beta2", "in [0, 1)", settings.beta2);
    require(std::isfinite(settings.eps) && settings.eps >= 0.0, "eps", "finite and at least 0", settings.eps);
  }
  if (settings.max_norm) {
    require(std::isfinite(*settings.max_norm) && *settings.max_norm > 0.0, "max_norm", "finite and greater than 0",
            *settings.max_norm);
  }
  const Index pieces = settings.accumulation_steps;
  if (pieces < 1 || (pieces & (pieces - 1)) != 0) {
    refuse_value("accumulation_steps must be a power of two, at least 1, got " + std::to_string(pieces));
  }
}

StepScalars step_scalars(const OptimizerSettings& settings, float lr, Index t) {
  const FloatScope float_scope;
  StepScalars scalars;
  scalars.lr = lr;
  const auto decay = static_cast<float>(settings.weight_decay);
  if (settings.kind == OptimizerKind::sgd) {
    SgdScalars& sgd = scalars.sgd;
    sgd.negative_lr = negated(lr);
    sgd.momentum = static_cast<float>(settings.momentum);
    sgd.c_dampening = flush(1.0F - static_cast<float>(settings.dampening));
    sgd.weight_decay = decay;
    sgd.nesterov = settings.nesterov;
    sgd.maximize = settings.maximize;
    return scalars;
  }
  AdamScalars& adam = scalars.adam;
  adam.beta1 = static_cast<float>(settings.beta1);
  adam.beta2 = static_cast<float>(settings.beta2);
  scalars.beta1_pow_t = integer_power(adam.beta1, t);
  scalars.beta2_pow_t = integer_power(adam.beta2, t);
  scalars.bias1 = flush(1.0F - scalars.beta1_pow_t);
  scalars.bias2 = flush(1.0F - scalars.beta2_pow_t);
  adam.step = div(lr, scalars.bias1);
  adam.root_bias2 = flush(elementary::sqrt(scalars.bias2));
  adam.c1 = flush(1.0F - adam.beta1);
  adam.c2 = flush(1.0F - adam.beta2);
  adam.eps = static_cast<float>(settings.eps);
  adam.weight_decay = decay;
  adam.decay = flush(1.0F - flush(lr * decay));
  adam.decoupled = settings.kind == OptimizerKind::adamw;
  adam.maximize = settings.maximize;
  return scalars;
}

Optimizer::Optimizer(Executor& executor, std::vector<Index> sizes, const OptimizerSettings& settings,
                     std::optional<Schedule> schedule, RankGroup* ranks)
    : executor_(executor),
      sizes_(std::move(sizes)),
      settings_(settings),
      schedule_(std::move(schedule)),
      ranks_(ranks) {
  check_settings(settings_);
  if (sizes_.empty()) refuse_value("an optimizer needs at least one parameter, the parameter list is empty");
  for (std::size_t j = 0; j < sizes_.size(); ++j) {
    if (sizes_[j] < 1) refuse_value("parameter " + std::to_string(j) + " is empty");
    if (ranks_ == nullptr) ranges_.push_back({j, total_, sizes_[j]});
    total_ += sizes_[j];
  }
  if (ranks_ != nullptr) ranges_ = ranks_->owned();
  frozen_.assign(sizes_.size(), false);
  runs_ = {{0, sizes_.size(), 0, total_}};
  buffer_initialized_.assign(sizes_.size(), 0);
  Index moments = 0;
  for (const ParameterRange& range : ranges_) moments += range.count;
  exp_avg_ = DeviceArray<float>(executor_.memory(), moments);
  exp_avg_.zero();
  if (settings_.kind != OptimizerKind::sgd) {
    exp_avg_sq_ = DeviceArray<float>(executor_.memory(), moments);
    exp_avg_sq_.zero();
  }
}

void Optimizer::freeze(const std::vector<bool>& frozen) {
  if (frozen.size() != sizes_.size() || std::find(frozen.begin(), frozen.end(), false) == frozen.end()) {
    throw Error(ErrorKind::internal, "freeze: one flag a tensor is needed, at least one of them false");
  }
  frozen_ = frozen;
  runs_.clear();
  Index offset = 0;
  for (std::size_t j = 0; j < sizes_.size(); offset += sizes_[j++]) {
    if (frozen[j]) continue;
    if (runs_.empty() || runs_.back().end != j) runs_.push_back({j, j, offset, 0});
    runs_.back().end = j + 1;
    runs_.back().size += sizes_[j];
  }
}

namespace {

constexpr const char* kBufferNames[] = {"input.param", "input.grad", "state.m", "state.v"};

// The first value of a step that is not finite.
struct NonFinite {
  int buffer = 4;   // of kBufferNames; 4: none
  Index index = 0;  // in the flat buffer
  float value = 0.0F;
};

}  // namespace

void Optimizer::refuse_non_finite(const float* parameters, const float* gradient) const {
  NonFinite found;
  const auto look = [&](int buffer, const float* values, Index count, Index first) {
    const Index at = executor_.elementwise().first_non_finite(count, values);
    if (at < 0 || buffer > found.buffer || (buffer == found.buffer && first + at > found.index)) return;
    found = {buffer, first + at, 0.0F};
    executor_.memory().copy_to_host(&found.value, values + at, sizeof found.value);
  };
  if (ranks_ == nullptr) {
    const float* buffers[] = {parameters, gradient, exp_avg_.data(), exp_avg_sq_.data()};
    for (int buffer = 0; buffer < 4 && found.buffer == 4; ++buffer) {
      for (const TensorRun& run : runs_) {
        if (buffers[buffer] != nullptr) look(buffer, buffers[buffer] + run.offset, run.size, run.offset);
      }
    }
  } else {
    Index moment = 0;
    for (const ParameterRange& range : ranges_) {
      look(0, parameters + range.first, range.count, range.first);
      if (!frozen_[range.tensor]) look(1, gradient + range.first, range.count, range.first);
      look(2, exp_avg_.data() + moment, range.count, range.first);
      if (exp_avg_sq_.size() > 0) look(3, exp_avg_sq_.data() + moment, range.count, range.first);
      moment += range.count;
    }
    for (const NonFinite& theirs : gather_values(ranks_->communicator(), found)) {
      if (std::pair(theirs.buffer, theirs.index) < std::pair(found.buffer, found.index)) found = theirs;
    }
  }
  if (found.buffer == 4) return;
  throw Error(ErrorKind::value, kNonFiniteClass,
              std::string(kBufferNames[found.buffer]) + " is " + (is_nan(found.value) ? "NaN" : "infinity") +
                  " at flat index " + std::to_string(found.index));
}

void Optimizer::clip(float* gradient, StepReport& report) {
  if (ranks_ == nullptr) {
    report.clip = clip_grad_norm(executor_, sizes_, runs_, *settings_.max_norm, gradient);
    return;
  }
  const std::vector<float> sums = ranks_->sums_of_squares(gradient);
  std::vector<float> counting;
  for (std::size_t j = 0; j < sums.size(); ++j) {
    if (!frozen_[j]) counting.push_back(sums[j]);
  }
  report.clip = clip_report(std::move(counting), *settings_.max_norm);
  for (const ParameterRange& range : ranges_) {
    if (frozen_[range.tensor]) continue;
    executor_.optimizer().scale(range.count, report.clip->coefficient, gradient + range.first);
  }
}

StepReport Optimizer::step(float* parameters, float* gradient) {
  const FloatScope float_scope;
  refuse_non_finite(parameters, gradient);

  StepReport report;
  report.t = t_ + 1;
  report.lr = schedule_ ? schedule_->at(report.t) : static_cast<float>(settings_.lr);
  if (settings_.max_norm) clip(gradient, report);
  report.scalars = step_scalars(settings_, report.lr, report.t);
  const bool adam = settings_.kind != OptimizerKind::sgd;
  if (ranks_ == nullptr && adam) {
    for (const TensorRun& run : runs_) {
      executor_.optimizer().adam(report.scalars.adam, run.size, gradient + run.offset, parameters + run.offset,
                                 exp_avg_.data() + run.offset, exp_avg_sq_.data() + run.offset);
    }
  } else {
    Index moment = 0;
    std::size_t bucket = 0;
    for (std::size_t r = 0; r < ranges_.size() || ranks_ != nullptr; ++r) {
      // New values go out as soon as a bucket is done.
      while (ranks_ != nullptr && bucket < ranks_->shares().buckets().size() &&
             ranks_->shares().owned_first(ranks_->split().rank, bucket + 1) <= r) {
        ranks_->share_parameters(bucket++, parameters);
      }
      if (r == ranges_.size()) break;
      if (!frozen_[ranges_[r].tensor]) update(report.scalars, r, moment, gradient, parameters);
      moment += ranges_[r].count;
    }
  }
  if (!adam && report.scalars.sgd.momentum != 0.0F) {
    for (std::size_t j = 0; j < sizes_.size(); ++j) buffer_initialized_[j] = frozen_[j] ? buffer_initialized_[j] : 1;
  }
  if (ranks_ != nullptr) ranks_->wait();
  if (schedule_) settings_.lr = static_cast<double>(report.lr);
  t_ = report.t;
  return report;
}

void Optimizer::update(const StepScalars& scalars, std::size_t r, Index moment, const float* gradient,
                       float* parameters) {
  const ParameterRange& range = ranges_[r];
  gradient += range.first;
  parameters += range.first;
  if (settings_.kind != OptimizerKind::sgd) {
    executor_.optimizer().adam(scalars.adam, range.count, gradient, parameters, exp_avg_.data() + moment,
                               exp_avg_sq_.data() + moment);
    return;
  }
  SgdScalars sgd = scalars.sgd;
  sgd.first = buffer_initialized_[range.tensor] == 0;
  executor_.optimizer().sgd(sgd, range.count, gradient, parameters, exp_avg_.data() + moment);
}

StepReport Optimizer::step_accumulated(float* parameters, std::span<float* const> parts, Index tokens) {
  const FloatScope float_scope;
  if (static_cast<Index>(parts.size()) != settings_.accumulation_steps) {
    refuse_value("parts must be accumulation_steps gradients, got " + std::to_string(parts.size()) + " with " +
                 "accumulation_steps " + std::to_string(settings_.accumulation_steps));
  }
  check_accumulation(tokens, settings_.accumulation_steps);
  for (float* part : parts) {
    const Index at = executor_.elementwise().first_non_finite(total_, part);
    if (at >= 0) refuse_non_finite(nullptr, part);
  }
  accumulate_in_place(executor_, total_, parts);
  return step(parameters, parts[0]);
}

void Optimizer::restore(Index completed_steps, DeviceArray<float> exp_avg, DeviceArray<float> exp_avg_sq,
                        std::vector<std::int32_t> buffer_initialized) {
  if (completed_steps < 0 || buffer_initialized.size() != sizes_.size() || exp_avg.size() != exp_avg_.size() ||
      exp_avg_sq.size() != exp_avg_sq_.size()) {
    throw Error(ErrorKind::internal, "restore: the state does not belong to this optimizer");
  }
  t_ = completed_steps;
  exp_avg_ = std::move(exp_avg);
  exp_avg_sq_ = std::move(exp_avg_sq);
  buffer_initialized_ = std::move(buffer_initialized);
}

}  // namespace samba
