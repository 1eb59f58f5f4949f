// Owned weights and session counters of Mamba-3 (spec 40 section 7).
#include "samba/blocks/module_core.h"
#include "samba/core/error.h"

namespace samba {

void BlockModule::Impl::check_has_owned_weights() const {
  if (rules->has_owned_weights()) return;
  refuse_unsupported("a " + kind + " block has no owned weights and no session counters; those belong to mamba3");
}

void BlockModule::Impl::count_stateless_call(bool backward) {
  if (!rules->has_owned_weights()) return;
  SessionInfo info = session_info.value_or(SessionInfo{});
  const std::uint64_t version = stateless_weights()->version;
  if (session_info && version == session_version) {
    ++info.weight_reuses;
  } else {
    ++info.weight_uploads;
    if (session_info) ++info.weight_recopies;
  }
  if (backward) ++info.backward_recomputes;
  session_version = version;
  session_info = info;
}

std::uint64_t BlockModule::install_owned_weights() {
  return impl_->named("install_owned_weights", [&] {
    const ModuleGuard guard(*impl_);
    impl_->check_has_owned_weights();
    impl_->weights->check_finite(impl_->executor);
    impl_->owned = impl_->weights;  // an edit of weights that are shared makes new ones
    return ++impl_->owned_generations;
  });
}

void BlockModule::release_owned_weights() {
  impl_->named("release_owned_weights", [&] {
    const ModuleGuard guard(*impl_);
    impl_->check_has_owned_weights();
    impl_->owned = nullptr;
  });
}

NamedArrays BlockModule::export_owned_weights() const {
  return impl_->named("export_owned_weights", [&] {
    impl_->check_has_owned_weights();
    if (impl_->owned == nullptr) refuse_value("no owned weights are installed");
    NamedArrays exported;
    for (std::size_t i = 0; i < weight_specs().size(); ++i) {
      const WeightSpec& spec = weight_specs()[i];
      Array values = expand(impl_->owned->arrays[i].download());
      exported.names.push_back(spec.name);
      exported.arrays.emplace(spec.name, std::move(values));
    }
    return exported;
  });
}

std::optional<SessionInfo> BlockModule::session_info() const {
  return impl_->named("session_info", [&] {
    impl_->check_has_owned_weights();
    return impl_->session_info;
  });
}

}  // namespace samba
