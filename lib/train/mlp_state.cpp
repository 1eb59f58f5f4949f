#include "samba/train/mlp_state.h"

#include "samba/core/error.h"
#include "samba/numerics/float32.h"

namespace samba {

namespace {

double rounded(const char* name, double value) {
  const auto single = static_cast<float>(value);
  if (!is_finite(single)) refuse_value(std::string(name) + " must be finite float32, got " + std::to_string(value));
  return static_cast<double>(single);
}

void check_values(const char* name, std::span<const float> values) {
  if (static_cast<Index>(values.size()) != kMlpParameters) {
    refuse_value(std::string(name) + " must have " + std::to_string(kMlpParameters) + " values, got " +
                 std::to_string(values.size()));
  }
}

[[noreturn]] void refuse_moments(const std::string& what) {
  refuse_value("optimizer requires nonnegative v and binary flags: " + what);
}

void check_moments(const MlpState& state) {
  check_values("m", state.exp_avg);
  check_values("v", state.exp_avg_sq);
  for (std::size_t i = 0; i < state.exp_avg.size(); ++i) {
    if (!is_finite(state.exp_avg[i])) refuse_moments("m must be finite, at flat index " + std::to_string(i));
    if (!is_finite(state.exp_avg_sq[i])) refuse_moments("v must be finite, at flat index " + std::to_string(i));
    if (state.exp_avg_sq[i] < 0.0F) {
      refuse_moments("v is " + std::to_string(state.exp_avg_sq[i]) + " at flat index " + std::to_string(i));
    }
  }
  for (const std::int32_t flag : state.flags) {
    if (flag != 0 && flag != 1) refuse_moments("a flag is " + std::to_string(flag));
  }
}

}  // namespace

OptimizerSettings rounded_mlp_settings(const OptimizerSettings& settings) {
  if (settings.kind != OptimizerKind::adamw) {
    refuse_unsupported("an MLP trains with adamw, got " + optimizer_kind_name(settings.kind));
  }
  if (settings.max_norm || settings.accumulation_steps != 1 || settings.maximize) {
    refuse_unsupported("an MLP trains without clipping, accumulation steps and maximize");
  }
  OptimizerSettings result;
  result.lr = rounded("lr", settings.lr);
  result.beta1 = rounded("beta1", settings.beta1);
  result.beta2 = rounded("beta2", settings.beta2);
  result.eps = rounded("eps", settings.eps);
  result.weight_decay = rounded("weight_decay", settings.weight_decay);
  if (!(result.lr > 0.0 && result.eps > 0.0 && result.weight_decay >= 0.0)) {
    refuse_value("requires lr > 0, eps > 0 and weight_decay >= 0 in float32, got lr " + std::to_string(settings.lr) +
                 ", eps " + std::to_string(settings.eps) + ", weight_decay " + std::to_string(settings.weight_decay));
  }
  const auto inside = [](double beta) { return beta >= 0.0 && beta < 1.0; };
  if (!inside(result.beta1) || !inside(result.beta2)) {
    refuse_value("betas must remain in [0, 1) in float32, got " + std::to_string(settings.beta1) + " and " +
                 std::to_string(settings.beta2));
  }
  return result;
}

void check_mlp_state(const MlpState& state) {
  check_values("weights", state.weights);
  for (const MlpTensor& tensor : mlp_tensors()) {
    for (Index i = tensor.offset; i < tensor.offset + tensor.size; ++i) {
      if (!is_finite(state.weights[static_cast<std::size_t>(i)])) refuse_value(tensor.name + " must be finite");
    }
  }
  rounded_mlp_settings(state.settings);
  if (state.step < 0 || state.step > kMlpMostSteps) {
    refuse_value("step is outside its supported range [0, 2^31), got " + std::to_string(state.step));
  }
  check_moments(state);
  check_data_schedule(state.data_schedule);
}

}  // namespace samba
