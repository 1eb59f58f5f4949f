#include "samba/train/optimizer.h"

#include <algorithm>
#include <cmath>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/model/samba_stack.h"
#include "samba/numerics/elementary.h"
#include "samba/train/accumulate.h"

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
                     std::optional<Schedule> schedule)
    : executor_(executor), sizes_(std::move(sizes)), settings_(settings), schedule_(std::move(schedule)) {
  check_settings(settings_);
  if (sizes_.empty()) refuse_value("an optimizer needs at least one parameter, the parameter list is empty");
  for (std::size_t j = 0; j < sizes_.size(); ++j) {
    if (sizes_[j] < 1) refuse_value("parameter " + std::to_string(j) + " is empty");
    total_ += sizes_[j];
  }
  buffer_initialized_.assign(sizes_.size(), 0);
  exp_avg_ = DeviceArray<float>(executor_.memory(), total_);
  exp_avg_.zero();
  if (settings_.kind != OptimizerKind::sgd) {
    exp_avg_sq_ = DeviceArray<float>(executor_.memory(), total_);
    exp_avg_sq_.zero();
  }
}

void Optimizer::refuse_non_finite(const char* buffer, const float* values) const {
  const Index index = executor_.elementwise().first_non_finite(total_, values);
  if (index < 0) return;
  float value = 0.0F;
  executor_.memory().copy_to_host(&value, values + index, sizeof value);
  throw Error(
      ErrorKind::value, kNonFiniteClass,
      std::string(buffer) + " is " + (is_nan(value) ? "NaN" : "infinity") + " at flat index " + std::to_string(index));
}

StepReport Optimizer::step(float* parameters, float* gradient) {
  const FloatScope float_scope;
  refuse_non_finite("input.param", parameters);
  refuse_non_finite("input.grad", gradient);
  refuse_non_finite("state.m", exp_avg_.data());
  if (exp_avg_sq_.size() > 0) refuse_non_finite("state.v", exp_avg_sq_.data());

  StepReport report;
  report.t = t_ + 1;
  report.lr = schedule_ ? schedule_->at(report.t) : static_cast<float>(settings_.lr);
  if (settings_.max_norm) report.clip = clip_grad_norm(executor_, sizes_, *settings_.max_norm, gradient);
  report.scalars = step_scalars(settings_, report.lr, report.t);
  if (settings_.kind == OptimizerKind::sgd) {
    apply_sgd(report.scalars.sgd, gradient, parameters);
  } else {
    executor_.optimizer().adam(report.scalars.adam, total_, gradient, parameters, exp_avg_.data(), exp_avg_sq_.data());
  }
  if (schedule_) settings_.lr = static_cast<double>(report.lr);
  t_ = report.t;
  return report;
}

void Optimizer::apply_sgd(SgdScalars scalars, const float* gradient, float* parameters) {
  Index first = 0;
  for (std::size_t j = 0; j < sizes_.size(); ++j) {
    scalars.first = buffer_initialized_[j] == 0;
    executor_.optimizer().sgd(scalars, sizes_[j], gradient + first, parameters + first, exp_avg_.data() + first);
    if (scalars.momentum != 0.0F) buffer_initialized_[j] = 1;
    first += sizes_[j];
  }
}

StepReport Optimizer::step_accumulated(float* parameters, std::span<float* const> parts, Index tokens) {
  const FloatScope float_scope;
  if (static_cast<Index>(parts.size()) != settings_.accumulation_steps) {
    refuse_value("parts must be accumulation_steps gradients, got " + std::to_string(parts.size()) + " with " +
                 "accumulation_steps " + std::to_string(settings_.accumulation_steps));
  }
  check_accumulation(tokens, settings_.accumulation_steps);
  for (float* part : parts) refuse_non_finite("input.grad", part);
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
