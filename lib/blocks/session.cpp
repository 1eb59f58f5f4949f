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

  std::string class_name() const { return class_prefix(module->kind) + "DecodeSession"; }
  template <class Body>
  auto named(const char* method, Body&& body) const {
    return with_name([&] { return class_name(); }, method, body);
  }
  void check_open() const {
    if (state == nullptr) refuse_value("the session is closed");
  }
  Array call(const ConstArray& x, bool step);
  void sync();
  void load();
  void release() noexcept {
    state.reset();
    weights.reset();
    caller->owned = false;
  }
};

Array DecodeSession::Impl::call(const ConstArray& x, bool step) {
  const ModuleGuard guard(*module);
  check_open();
  const BlockModule::Impl::Input input = module->check_input(x, step);
  if (input.batch != state->batch_size()) {
    module->rules->refuse_batch(input.batch, state->batch_size());
  }
  weights->block->check_call(state.get(), input.length);
  const std::uint64_t calls = module->calls;
  Array y = module->run({input, weights, state.get(), std::nullopt});
  module->calls = calls;  // a tape outlives the calls of a session: they compute with copies
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
  return impl_->named("open_session", [&] {
    const ModuleGuard guard(*impl_);
    ModuleState::Impl& state = *of.impl_;
    const StateGuard state_guard(state);
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
  });
}

DecodeSession::DecodeSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DecodeSession::DecodeSession(DecodeSession&&) noexcept = default;

DecodeSession::~DecodeSession() {
  if (impl_ != nullptr && open()) impl_->release();
}

Array DecodeSession::step(ConstArray x) {
  return impl_->named("step", [&] { return impl_->call(x, true); });
}

Array DecodeSession::forward(ConstArray x) {
  return impl_->named("forward", [&] {
    if (!impl_->module->rules->session_has_forward()) {
      refuse_unsupported("forward is not offered by a " + impl_->class_name() + "; it has step");
    }
    return impl_->call(x, false);
  });
}

void DecodeSession::sync_state() {
  impl_->named("sync_state", [&] {
    const ModuleGuard guard(*impl_->module);
    impl_->check_open();
    impl_->sync();
  });
}

void DecodeSession::load_state() {
  impl_->named("load_state", [&] {
    const ModuleGuard guard(*impl_->module);
    impl_->check_open();
    impl_->load();
  });
}

void DecodeSession::close() {
  impl_->named("close", [&] {
    const ModuleGuard guard(*impl_->module);
    if (!open()) return;
    struct Release {
      Impl& session;
      ~Release() { session.release(); }
    } const release{*impl_};
    impl_->sync();
  });
}

void DecodeSession::discard() {
  impl_->named("discard", [&] {
    const ModuleGuard guard(*impl_->module);
    if (open()) impl_->release();
  });
}

bool DecodeSession::open() const { return impl_->state != nullptr; }

ModuleState DecodeSession::state() const { return ModuleState(impl_->caller); }

std::string DecodeSession::describe() const {
  const std::string counter = impl_->module->rules->followed_counter();
  return impl_->class_name() + "(open=" + (open() ? "true" : "false") +
         (counter.empty() ? ", rows=" + std::to_string(impl_->caller->batch_size)
                          : ", " + counter + "=" + std::to_string(impl_->caller->counters().at(counter))) +
         ")";
}

}  // namespace samba
