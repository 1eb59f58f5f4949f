#include "samba/train/mlp_trainer.h"

#include <cstring>
#include <utility>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/model/mlp_inference.h"
#include "samba/numerics/float32.h"

namespace samba {

namespace {

// The classes of a batch. Every integer dtype is read by its value.
std::vector<std::int32_t> checked_targets(const ConstArray& targets, Index rows) {
  const auto refuse = [&](const std::string& given) {
    refuse_value("targets must have shape (batch,) with classes 0..2, got " + given);
  };
  const auto read = [&](auto sample) {
    using Integer = decltype(sample);
    if (targets.shape != Shape{rows}) refuse("the shape " + shape_text(targets.shape));
    const auto* values = static_cast<const Integer*>(targets.data);
    std::vector<std::int32_t> classes(static_cast<std::size_t>(rows));
    for (std::size_t i = 0; i < classes.size(); ++i) {
      if (std::cmp_less(values[i], 0) || std::cmp_greater_equal(values[i], kMlpClasses)) {
        refuse(std::to_string(values[i]) + " in row " + std::to_string(i));
      }
      classes[i] = static_cast<std::int32_t>(values[i]);
    }
    return classes;
  };
  switch (targets.dtype) {
    case DType::int8:
      return read(static_cast<signed char>(0));
    case DType::int32:
      return read(std::int32_t{});
    case DType::int64:
      return read(std::int64_t{});
    case DType::uint8:
      return read(static_cast<unsigned char>(0));
    case DType::uint16:
      return read(std::uint16_t{});
    default:
      refuse_type("targets must be an integer array, got " + std::string(dtype_name(targets.dtype)));
  }
}

MlpState new_state(const ConstWeightMap& weights, nlohmann::json data_schedule, const OptimizerSettings& settings) {
  MlpState state;
  state.weights = flat_mlp_arrays(weights);
  state.exp_avg.assign(static_cast<std::size_t>(kMlpParameters), 0.0F);
  state.exp_avg_sq = state.exp_avg;
  state.settings = rounded_mlp_settings(settings);
  state.data_schedule = std::move(data_schedule);
  return state;
}

}  // namespace

MlpTrainer::MlpTrainer(Executor& executor, const ConstWeightMap& weights, nlohmann::json data_schedule,
                       const OptimizerSettings& settings)
    : MlpTrainer(executor, new_state(weights, std::move(data_schedule), settings)) {}

MlpTrainer::MlpTrainer(Executor& executor, const MlpState& state)
    : executor_(executor),
      network_(executor),
      values_(executor.memory(), 3 * kMlpParameters),
      next_(executor.memory(), 3 * kMlpParameters),
      gradients_(executor.memory(), kMlpParameters),
      x_(executor.memory(), kMlpMostRows * kMlpFeatures),
      d_x_(executor.memory(), kMlpMostRows * kMlpFeatures),
      targets_(executor.memory(), kMlpMostRows) {
  load_state(state);
}

void MlpTrainer::load_state(const MlpState& state) {
  check_mlp_state(state);
  std::vector<float> values;
  for (const auto* part : {&state.weights, &state.exp_avg, &state.exp_avg_sq}) {
    values.insert(values.end(), part->begin(), part->end());
  }
  values_.upload(values.data());
  settings_ = rounded_mlp_settings(state.settings);
  data_schedule_ = state.data_schedule;
  step_ = state.step;
  flags_ = state.flags;
}

MlpState MlpTrainer::state() const {
  std::vector<float> values(static_cast<std::size_t>(3 * kMlpParameters));
  values_.download(values.data());
  MlpState state;
  const auto take = [&](Index part) {
    const auto first = values.begin() + part * kMlpParameters;
    return std::vector<float>(first, first + kMlpParameters);
  };
  state.weights = take(0);
  state.exp_avg = take(1);
  state.exp_avg_sq = take(2);
  state.flags = flags_;
  state.step = step_;
  state.settings = settings_;
  state.data_schedule = data_schedule_;
  return state;
}

ArrayMap MlpTrainer::weights() const { return mlp_arrays(state().weights); }

void MlpTrainer::set_data_schedule(nlohmann::json schedule) {
  check_data_schedule(schedule);
  data_schedule_ = std::move(schedule);
}

Array MlpTrainer::download(const float* device, Shape shape) const {
  Array host = Array::zeros(std::move(shape));
  executor_.memory().copy_to_host(host.data(), device, host.byte_size());
  return host;
}

Index MlpTrainer::upload_input(const ConstArray& x) {
  const Index rows = check_mlp_input(x);
  executor_.memory().copy_to_device(x_.data(), x.data, static_cast<std::size_t>(rows * kMlpFeatures) * sizeof(float));
  return rows;
}

void MlpTrainer::upload_targets(const ConstArray& targets, Index rows) {
  const std::vector<std::int32_t> classes = checked_targets(targets, rows);
  executor_.memory().copy_to_device(targets_.data(), classes.data(), classes.size() * sizeof(std::int32_t));
}

void MlpTrainer::compute_gradients(const ConstArray& x, const ConstArray& targets, bool input_gradient,
                                   MlpGradients& result) {
  const Index rows = upload_input(x);
  upload_targets(targets, rows);
  const float* logits = network_.forward(rows, values_.data(), x_.data(), stages_);
  result.logits = download(logits, {rows, kMlpClasses});
  result.loss = network_.backward(rows, values_.data(), x_.data(), targets_.data(), gradients_.data(),
                                  input_gradient ? d_x_.data() : nullptr, stages_);
  std::vector<float> flat(static_cast<std::size_t>(kMlpParameters));
  gradients_.download(flat.data());
  result.gradients = mlp_arrays(flat);
  if (input_gradient) result.x = download(d_x_.data(), {rows, kMlpFeatures});
}

MlpGradients MlpTrainer::loss_and_grads(const ConstArray& x, const ConstArray& targets, bool input_gradient) {
  const FloatScope float_scope;
  MlpGradients result;
  compute_gradients(x, targets, input_gradient, result);
  return result;
}

void MlpTrainer::check_step_counter() const {
  if (step_ >= kMlpMostSteps) refuse_value("step counter is exhausted: " + std::to_string(step_) + " steps are done");
}

void MlpTrainer::update() {
  const StepScalars scalars = step_scalars(settings_, static_cast<float>(settings_.lr), step_ + 1);
  executor_.memory().copy(next_.data(), values_.data(), values_.byte_size());
  float* parameters = next_.data();
  float* exp_avg = parameters + kMlpParameters;
  float* exp_avg_sq = exp_avg + kMlpParameters;
  executor_.optimizer().adam(scalars.adam, kMlpParameters, gradients_.data(), parameters, exp_avg, exp_avg_sq);
  const Index at = executor_.elementwise().first_non_finite(3 * kMlpParameters, parameters);
  if (at >= 0) {
    const char* const what[] = {"a new parameter", "a new moment m", "a new moment v"};
    throw Error(ErrorKind::value, kNonFiniteClass,
                std::string("nonfinite: ") + what[at / kMlpParameters] + " is not finite, at flat index " +
                    std::to_string(at % kMlpParameters));
  }
  std::swap(values_, next_);
  ++step_;
}

Index MlpTrainer::apply_gradients(const ConstArrayMap& gradients) {
  const FloatScope float_scope;
  if (gradients.size() != mlp_tensors().size()) {
    refuse_value("apply_gradients requires exactly four gradients, got " + std::to_string(gradients.size()));
  }
  const std::vector<float> flat = flat_mlp_arrays(gradients, "gradient");
  check_step_counter();
  gradients_.upload(flat.data());
  update();
  return step_;
}

MlpStep MlpTrainer::train_step(const ConstArray& x, const ConstArray& targets, bool input_gradient) {
  const FloatScope float_scope;
  check_step_counter();
  MlpStep result;
  compute_gradients(x, targets, input_gradient, result.before);
  update();
  result.step = step_;
  return result;
}

Array MlpTrainer::predict_logits(const ConstArray& x) {
  const FloatScope float_scope;
  const Index rows = upload_input(x);
  return download(network_.forward(rows, values_.data(), x_.data()), {rows, kMlpClasses});
}

Array MlpTrainer::predict_logits_sessions(std::span<const ConstArray> batches) {
  const FloatScope float_scope;
  return joined_logits(batches, [this](const ConstArray& batch) { return predict_logits(batch); });
}

}  // namespace samba
