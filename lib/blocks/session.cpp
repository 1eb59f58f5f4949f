// Decode sessions (spec 20 section 7, spec 40 section 7).
#include <utility>

#include "samba/blocks/module_core.h"
#include "samba/core/error.h"

namespace samba {

struct DecodeSession::Impl {
  std::shared_ptr<BlockModule::Impl> module;
  std::shared_ptr<ModuleState::Impl> caller;  // the caller's state
  std::shared_ptr<BoundWeights> weights;
  std::unique_ptr<BlockState> state;  // null: released

  void check_open(const char* method) const {
    if (state == nullptr) refuse_value(std::string(method) + ": the session is closed");
  }
  Array call(const ConstArray& x, const char* method, bool step);
  void sync();
  void load();
  void release() noexcept {
    state.reset();
    weights.reset();
    caller->owned = false;
  }
};

Array DecodeSession::Impl::call(const ConstArray& x, const char* method, bool step) {
  const BusyGuard guard(*module);
  check_open(method);
  const BlockModule::Impl::Input input = module->check_input(x, step);
  if (input.batch != state->batch_size()) {
    module->rules->refuse_batch(input.batch, state->batch_size());
  }
  weights->block->check_call(state.get(), input.length);
  const std::uint64_t calls = module->calls;
  Array y = module->run({input, *weights, state.get(), std::nullopt});
  module->calls = calls;  // a tape outlives the calls of a session: they compute with copies
  module->reported = weights;
  if (const std::string counter = module->rules->followed_counter(); !counter.empty()) {
    caller->counter_edits[counter] = state->counters().at(counter);
    caller->applied = false;
  }
  return y;
}

void DecodeSession::Impl::sync() {
  caller->check_edits();  // the caller's arrays must be able to take the values
  caller->replace(*state);
}

void DecodeSession::Impl::load() {
  module->prepare_edits(*caller);
  state = caller->device->clone();
}

DecodeSession BlockModule::open_session(ModuleState& of) {
  const BusyGuard guard(*impl_);
  ModuleState::Impl& state = *of.impl_;
  if (state.executor != &impl_->executor) refuse_value("the state lives on another executor than the block");
  if (state.owned) refuse_value("the state is owned by an open decode session; it cannot have a second session");
  impl_->rules->check_same_states(*state.rules);
  impl_->prepare_edits(state);
  auto session = std::make_unique<DecodeSession::Impl>();
  session->module = impl_;
  session->caller = of.impl_;
  session->weights = impl_->weights;
  session->state = state.device->clone();
  state.owned = true;
  return DecodeSession(std::move(session));
}

DecodeSession::DecodeSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DecodeSession::DecodeSession(DecodeSession&&) noexcept = default;

DecodeSession::~DecodeSession() {
  if (impl_ != nullptr && open()) impl_->release();
}

Array DecodeSession::step(ConstArray x) { return impl_->call(x, "step", true); }

Array DecodeSession::forward(ConstArray x) {
  if (!impl_->module->rules->session_has_forward()) {
    refuse_unsupported("forward is not offered by a " + impl_->module->rules->session_name() + "; it has step");
  }
  return impl_->call(x, "forward", false);
}

void DecodeSession::sync_state() {
  const BusyGuard guard(*impl_->module);
  impl_->check_open("sync_state");
  impl_->sync();
}

void DecodeSession::load_state() {
  const BusyGuard guard(*impl_->module);
  impl_->check_open("load_state");
  impl_->load();
}

void DecodeSession::close() {
  const BusyGuard guard(*impl_->module);
  if (!open()) return;
  struct Release {
    Impl& session;
    ~Release() { session.release(); }
  } const release{*impl_};
  impl_->sync();
}

void DecodeSession::discard() {
  const BusyGuard guard(*impl_->module);
  if (open()) impl_->release();
}

bool DecodeSession::open() const { return impl_->state != nullptr; }

std::string DecodeSession::describe() const {
  const BlockRules& rules = *impl_->module->rules;
  std::string text = rules.session_name() + "(open=" + (open() ? "true" : "false");
  const std::string counter = rules.followed_counter();
  if (counter.empty()) return text + ", rows=" + std::to_string(impl_->caller->batch_size) + ")";
  return text + ", " + counter + "=" + std::to_string(impl_->caller->counters().at(counter)) + ")";
}

}  // namespace samba
