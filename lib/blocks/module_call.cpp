// Checks and computation of one call of a module or a session (spec 20 section 9, spec 40 section 9).
#include <algorithm>
#include <utility>

#include "samba/blocks/module_core.h"
#include "samba/blocks/refusals.h"
#include "samba/core/error.h"

namespace samba {

namespace {

std::string text(Index value) { return std::to_string(value); }

void check_lengths(std::span<const Index> lengths, Index batch, Index length) {
  if (static_cast<Index>(lengths.size()) != batch) {
    refuse_value("lengths must have one entry a batch row, " + text(batch) + ", got " +
                 text(static_cast<Index>(lengths.size())));
  }
  for (std::size_t row = 0; row < lengths.size(); ++row) {
    if (lengths[row] >= 1 && lengths[row] <= length) continue;
    refuse_value("lengths[" + std::to_string(row) + "] must be in 1.." + text(length) + ", got " + text(lengths[row]));
  }
}

// +0.0 at the positions lengths[b].. of row b of values (batch, length, width).
void zero_padding(std::span<const Index> lengths, Index length, Index width, std::span<float> values) {
  for (std::size_t row = 0; row < lengths.size(); ++row) {
    const Index first = (static_cast<Index>(row) * length + lengths[row]) * width;
    const Index count = (length - lengths[row]) * width;
    std::fill_n(values.begin() + first, count, 0.0F);
  }
}

}  // namespace

BlockModule::Impl::Input BlockModule::Impl::check_input(const ConstArray& x, bool step) const {
  refuse_other_dtype("x", x);
  const bool flat = step && x.shape.size() == 2;
  if (x.shape.size() != 3 && !flat) {
    refuse_value("x must be (batch, length, d_model)" + std::string(step ? " or (batch, d_model)" : "") +
                 " with d_model " + text(d_model()) + ", got the shape " + shape_text(x.shape));
  }
  Input input;
  input.batch = x.shape[0];
  input.length = flat ? 1 : x.shape[1];
  if (input.batch < 1 || input.length < 1) {
    refuse_value("x must have at least one row and one token, got the shape " + shape_text(x.shape) + " with d_model " +
                 text(d_model()));
  }
  if (x.shape.back() != d_model()) {
    refuse_value("the last size of x must be d_model " + text(d_model()) + ", got " + text(x.shape.back()) +
                 " in the shape " + shape_text(x.shape));
  }
  if (step && input.length != 1) {
    refuse_value("step takes one token per row, L = 1, got L = " + text(input.length));
  }
  input.values = {x.floats(), static_cast<std::size_t>(input.batch * input.length * d_model())};
  return input;
}

void BlockModule::Impl::check_gradient(const ConstArray& grad_output, const Input& x) const {
  refuse_other_array("grad_output", grad_output, {x.batch, x.length, d_model()});
}

void BlockModule::Impl::prepare_edits(ModuleState::Impl& state) const {
  state.check_edits();
  rules->check_counters(state.counters());
  state.apply();
}

void BlockModule::Impl::check_state(ModuleState::Impl& state, Index batch, Index length) const {
  if (state.executor != &executor) refuse_value("the state lives on another executor than the block");
  rules->check_same_states(*state.rules);
  if (batch != state.batch_size) rules->refuse_batch(batch, state.batch_size);
  state.check_edits();
  if (state.owned) refuse_value("the state is owned by an open decode session; close the session first");
  prepare_edits(state);
  weights->block->check_call(state.device.get(), length);
}

Array BlockModule::Impl::call(const char* method, const ConstArray& x, ModuleState::Impl* state,
                              std::optional<std::span<const Index>> lengths, bool step) {
  return named(method, [&] {
    const ModuleGuard guard(*this);
    std::optional<StateGuard> state_guard;
    if (state != nullptr) state_guard.emplace(*state);
    const Input input = check_input(x, step);
    if (step && state == nullptr) refuse_value("step needs a state: a state is required to continue from");
    if (state != nullptr) {
      check_state(*state, input.batch, input.length);
    } else {
      weights->block->check_call(nullptr, input.length);
    }
    if (lengths && state != nullptr) refuse_value("lengths cannot be combined with a state");
    if (lengths) check_lengths(*lengths, input.batch, input.length);
    if (state == nullptr) {
      Array y = run({input, stateless_weights(), nullptr, lengths});
      count_stateless_call(false);
      return y;
    }
    Array y = run({input, weights, state->device.get(), std::nullopt});
    state->forget_edits();
    return y;
  });
}

Array BlockModule::Impl::run(const Call& call) {
  ++calls;
  const Shape shape = {call.x.batch, call.x.length, d_model()};
  std::span<const float> values = call.x.values;
  Array unpadded;
  if (call.lengths) {
    unpadded = Array::from_floats(shape, values);
    zero_padding(*call.lengths, call.x.length, d_model(), unpadded.floats());
    values = unpadded.floats();
  }
  check_finite("x", values);
  call.weights->check_finite(executor);
  if (call.state != nullptr) rules->check_finite(*call.state);

  const Workspace::Scope scope(workspace);
  const auto count = static_cast<Index>(values.size());
  float* x = workspace.floats(count);
  float* y = workspace.floats(count);
  executor.memory().copy_to_device(x, values.data(), values.size_bytes());
  Block& block = *call.weights->block;
  rules->set_reports(block, reports_wanted);
  block.forward(call.x.batch, call.x.length, x, y, call.state, workspace, stages);
  reported = reports_wanted ? call.weights : nullptr;
  Array result(DType::float32, shape);
  executor.memory().copy_to_host(result.data(), y, result.byte_size());
  if (call.lengths) zero_padding(*call.lengths, call.x.length, d_model(), result.floats());
  return result;
}

}  // namespace samba
