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

NamedGradients BlockModule::backward(ConstArray x, ConstArray grad_output) {
  Impl& module = *impl_;
  const BusyGuard guard(module);
  module.rules->check_differentiable("backward");
  const Impl::Input input = module.check_input(x, false);
  module.check_gradient(grad_output, input);
  ++module.calls;
  for (const BlockRules::Operand operand : module.rules->backward_order()) {
    switch (operand) {
      case BlockRules::Operand::weights:
        module.weights->check_finite(module.executor);
        break;
      case BlockRules::Operand::x:
        module.rules->check_backward_length(input.length);
        check_finite("x", input.values);
        break;
      case BlockRules::Operand::grad_output:
        check_finite("grad_output", floats_of(grad_output));
        break;
    }
  }

  const Workspace::Scope scope(module.workspace);
  Block& block = *module.weights->block;
  const GradientArrays arrays(module.workspace, block, input.batch * input.length);
  const float* device_x = upload(module.executor, module.workspace, input.values);
  const float* dy = upload(module.executor, module.workspace, floats_of(grad_output));
  block.backward(input.batch, input.length, device_x, dy, arrays.dx, arrays.weights, module.workspace, module.stages);
  return module.take_gradients(input, arrays.weights, arrays.dx);
}

BlockModule::Taped BlockModule::forward_with_tape(ConstArray x, std::int64_t activation_budget_bytes,
                                                  std::int64_t minimum_replay_ops_per_byte) {
  Impl& module = *impl_;
  const BusyGuard guard(module);
  module.rules->check_differentiable("forward_with_tape");
  if (activation_budget_bytes < 0 || minimum_replay_ops_per_byte < 0) {
    refuse_value("activation budget and replay cost must be nonnegative, got " +
                 std::to_string(activation_budget_bytes) + " and " + std::to_string(minimum_replay_ops_per_byte));
  }
  const Impl::Input input = module.check_input(x, false);
  ++module.calls;
  for (const BlockRules::Operand operand : module.rules->backward_order()) {
    if (operand == BlockRules::Operand::weights) module.weights->check_finite(module.executor);
    if (operand != BlockRules::Operand::x) continue;
    module.rules->check_backward_length(input.length);
    check_finite("x", input.values);
  }

  auto tape = std::make_unique<Tape::Impl>();
  tape->module = impl_;
  tape->weights = module.weights;
  tape->batch = input.batch;
  tape->length = input.length;
  tape->x = DeviceArray<float>(module.executor.memory(), static_cast<Index>(input.values.size()));
  tape->x.upload(input.values.data());
  const BlockRules::TapeCost cost = module.rules->tape_cost(input.batch, input.length);
  tape->stage_bytes = cost.stage_bytes;
  Block& block = *module.weights->block;
  const Index kept = module.rules->kept_floats(block, input.batch * input.length);
  tape->retained = kept > 0 && cost.stage_bytes <= activation_budget_bytes &&
                   (minimum_replay_ops_per_byte <= 0 || cost.ops / cost.stage_bytes >= minimum_replay_ops_per_byte);

  const Workspace::Scope scope(module.workspace);
  float* y = module.workspace.floats(static_cast<Index>(input.values.size()));
  if (tape->retained) {
    tape->kept = DeviceArray<float>(module.executor.memory(), kept);
    module.rules->forward_keeping(block, input.batch, input.length, tape->x.data(), y, tape->kept.data(),
                                  module.workspace);
  } else {
    block.forward(input.batch, input.length, tape->x.data(), y, nullptr, module.workspace, module.stages);
  }
  module.reported = module.weights;
  Taped result{Array(DType::float32, x.shape), nullptr};
  module.executor.memory().copy_to_host(result.y.data(), y, result.y.byte_size());
  tape->made_by_call = module.calls;
  result.tape = std::make_unique<Tape>(std::move(tape));
  return result;
}

NamedGradients BlockModule::backward_from_tape(Tape& handle, ConstArray grad_output) {
  Impl& module = *impl_;
  const BusyGuard guard(module);
  Tape::Impl& tape = *handle.impl_;
  if (tape.module.get() != &module) refuse_value("the tape belongs to another block");
  if (tape.used || tape.made_by_call != module.calls) {
    refuse_value("stale, consumed or incompatible tape: it is used once, before any other call of its block");
  }
  const Impl::Input input{tape.batch, tape.length, {}};
  module.check_gradient(grad_output, input);
  tape.used = true;
  const std::shared_ptr<BoundWeights> weights = tape.weights;
  const DeviceArray<float> x = std::move(tape.x);
  DeviceArray<float> kept = std::move(tape.kept);
  tape.release();
  check_finite("grad_output", floats_of(grad_output));

  const Workspace::Scope scope(module.workspace);
  Block& block = *weights->block;
  const GradientArrays arrays(module.workspace, block, tape.batch * tape.length);
  const float* dy = upload(module.executor, module.workspace, floats_of(grad_output));
  if (tape.retained) {
    module.rules->backward_from(block, tape.batch, tape.length, x.data(), kept.data(), dy, arrays.dx, arrays.weights,
                                module.workspace, module.stages);
  } else {
    block.backward(tape.batch, tape.length, x.data(), dy, arrays.dx, arrays.weights, module.workspace, module.stages);
  }
  return module.take_gradients(input, arrays.weights, arrays.dx);
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

}  // namespace samba
