// Gradients of a module, at once or from a tape (spec 21 sections 3 and 8, spec 41 section 1).
#include <utility>

#include "samba/blocks/module_core.h"
#include "samba/blocks/refusals.h"
#include "samba/core/error.h"

namespace samba {

namespace {

std::span<const float> floats_of(const ConstArray& array) {
  return {array.floats(), static_cast<std::size_t>(array.size())};
}

// dx and one array a weight, from the workspace of a call.
struct GradientArrays {
  GradientArrays(Workspace& workspace, const Block& block, Index rows) : dx(workspace.floats(rows * block.d_model())) {
    for (const WeightSpec& spec : block.weight_specs()) weights.push_back(workspace.floats(element_count(spec.shape)));
  }
  float* dx;
  std::vector<float*> weights;
};

float* upload(Executor& executor, Workspace& workspace, std::span<const float> values) {
  float* device = workspace.floats(static_cast<Index>(values.size()));
  executor.memory().copy_to_device(device, values.data(), values.size_bytes());
  return device;
}

}  // namespace

NamedGradients BlockModule::Impl::take_gradients(const Input& x, std::span<float* const> weight_gradients,
                                                 const float* dx) const {
  NamedGradients gradients;
  const auto take = [&](const std::string& name, const Shape& shape, const float* device) {
    Array values(DType::float32, shape);
    executor.memory().copy_to_host(values.data(), device, values.byte_size());
    gradients.names.push_back(name);
    gradients.arrays.emplace(name, std::move(values));
  };
  take("x", {x.batch, x.length, d_model()}, dx);
  const std::vector<WeightSpec>& specs = weights->block->weight_specs();
  for (std::size_t i = 0; i < specs.size(); ++i) take(specs[i].name, specs[i].shape, weight_gradients[i]);
  return gradients;
}

void BlockModule::Impl::check_gradient_operands(const Input& x, std::optional<std::span<const float>> grad_output) {
  ++calls;
  for (const BlockRules::Operand operand : rules->backward_order()) {
    switch (operand) {
      case BlockRules::Operand::weights:
        stateless_weights()->check_finite(executor);
        break;
      case BlockRules::Operand::x:
        rules->check_backward_length(x.length);
        check_finite("x", x.values);
        break;
      case BlockRules::Operand::grad_output:
        if (grad_output) check_finite("grad_output", *grad_output);
        break;
    }
  }
}

NamedGradients BlockModule::Impl::backward(const ConstArray& x, const ConstArray& grad_output) {
  const ModuleGuard guard(*this);
  refuse_if_inference();
  refuse_backward_mode(executor.numeric_mode());
  rules->check_differentiable("backward", extended_gradients);
  const Input input = check_input(x, false);
  check_gradient(grad_output, input);
  check_gradient_operands(input, floats_of(grad_output));

  const Workspace::Scope scope(workspace);
  Block& block = *stateless_weights()->block;
  const GradientArrays arrays(workspace, block, input.batch * input.length);
  const float* device_x = upload(executor, workspace, input.values);
  const float* dy = upload(executor, workspace, floats_of(grad_output));
  block.backward(input.batch, input.length, device_x, dy, arrays.dx, arrays.weights, workspace, stages);
  count_stateless_call(true);
  return take_gradients(input, arrays.weights, arrays.dx);
}

BlockModule::Taped BlockModule::Impl::forward_with_tape(const ConstArray& x, std::int64_t activation_budget_bytes,
                                                        std::int64_t minimum_replay_ops_per_byte) {
  const ModuleGuard guard(*this);
  refuse_if_inference();
  refuse_tape_mode(executor.numeric_mode());
  rules->check_differentiable("forward_with_tape", extended_gradients);
  if (activation_budget_bytes < 0 || minimum_replay_ops_per_byte < 0) {
    refuse_value("activation budget and replay cost must be nonnegative, got " +
                 std::to_string(activation_budget_bytes) + " and " + std::to_string(minimum_replay_ops_per_byte));
  }
  const Input input = check_input(x, false);
  check_gradient_operands(input, std::nullopt);

  auto tape = std::make_unique<Tape::Impl>();
  tape->weights = stateless_weights();
  tape->batch = input.batch;
  tape->length = input.length;
  tape->x = DeviceArray<float>(executor.memory(), static_cast<Index>(input.values.size()));
  tape->x.upload(input.values.data());
  rules->set_reports(*tape->weights->block, reports_wanted);
  const BlockRules::TapeCost cost = rules->tape_cost(input.batch, input.length);
  tape->stage_bytes = cost.stage_bytes;
  Block& block = *stateless_weights()->block;
  const Index kept = rules->kept_floats(block, input.batch * input.length);
  tape->retained = kept > 0 && cost.stage_bytes <= activation_budget_bytes &&
                   (minimum_replay_ops_per_byte <= 0 || cost.ops / cost.stage_bytes >= minimum_replay_ops_per_byte);

  const Workspace::Scope scope(workspace);
  float* y = workspace.floats(static_cast<Index>(input.values.size()));
  if (tape->retained) {
    tape->kept = DeviceArray<float>(executor.memory(), kept);
    rules->forward_keeping(block, input.batch, input.length, tape->x.data(), y, tape->kept.data(), workspace);
  } else {
    block.forward(input.batch, input.length, tape->x.data(), y, nullptr, workspace, stages);
  }
  reported = reports_wanted ? tape->weights : nullptr;
  count_stateless_call(false);
  Taped result{Array(DType::float32, x.shape), nullptr};
  executor.memory().copy_to_host(result.y.data(), y, result.y.byte_size());
  tape->made_by_call = calls;
  result.tape = std::make_unique<Tape>(std::move(tape));
  return result;
}

NamedGradients BlockModule::Impl::backward_from_tape(Tape::Impl& tape, const ConstArray& grad_output) {
  const ModuleGuard guard(*this);
  refuse_if_inference();
  refuse_tape_mode(executor.numeric_mode());
  if (tape.module.get() != this) refuse_value("the tape belongs to another block");
  if (tape.used || tape.made_by_call != calls) {
    refuse_value("stale, consumed or incompatible tape: it is used once, before any other call of its block");
  }
  const Input input{tape.batch, tape.length, {}};
  check_gradient(grad_output, input);
  tape.used = true;
  const std::shared_ptr<BoundWeights> of_tape = tape.weights;
  const DeviceArray<float> x = std::move(tape.x);
  DeviceArray<float> kept = std::move(tape.kept);
  tape.release();
  check_finite("grad_output", floats_of(grad_output));

  const Workspace::Scope scope(workspace);
  Block& block = *of_tape->block;
  const GradientArrays arrays(workspace, block, tape.batch * tape.length);
  const float* dy = upload(executor, workspace, floats_of(grad_output));
  if (tape.retained) {
    rules->backward_from(block, tape.batch, tape.length, x.data(), kept.data(), dy, arrays.dx, arrays.weights,
                         workspace, stages);
  } else {
    block.backward(tape.batch, tape.length, x.data(), dy, arrays.dx, arrays.weights, workspace, stages);
  }
  return take_gradients(input, arrays.weights, arrays.dx);
}

void BlockModule::admit_extended_gradients() { impl_->extended_gradients = true; }

NamedGradients BlockModule::backward(ConstArray x, ConstArray grad_output) {
  return impl_->named("backward", [&] { return impl_->backward(x, grad_output); });
}

BlockModule::Taped BlockModule::forward_with_tape(ConstArray x, std::int64_t activation_budget_bytes,
                                                  std::int64_t minimum_replay_ops_per_byte) {
  Taped taped = impl_->named("forward_with_tape", [&] {
    return impl_->forward_with_tape(x, activation_budget_bytes, minimum_replay_ops_per_byte);
  });
  taped.tape->impl_->module = impl_;
  return taped;
}

NamedGradients BlockModule::backward_from_tape(Tape& tape, ConstArray grad_output) {
  return impl_->named("backward_from_tape", [&] { return impl_->backward_from_tape(*tape.impl_, grad_output); });
}

void Tape::Impl::release() {
  used = true;
  weights.reset();
  x = DeviceArray<float>();
  kept = DeviceArray<float>();
}

Tape::Tape(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tape::~Tape() = default;
bool Tape::retained() const { return impl_->retained; }
std::int64_t Tape::stage_bytes() const { return impl_->stage_bytes; }
void Tape::close() { impl_->release(); }

void Tape::save(const std::filesystem::path& path) const {
  refuse_unsupported("a tape is not serialisable: nothing is written to " + path.string() +
                     "; save the block, and make the tape again");
}

}  // namespace samba
