#include <algorithm>
#include <cstring>
#include <utility>

#include "samba/blocks/block_options.h"
#include "samba/blocks/mamba3/mamba3_state.h"
#include "samba/blocks/module_core.h"
#include "samba/blocks/refusals.h"
#include "samba/blocks/transformer/transformer_state.h"
#include "samba/core/error.h"

namespace samba {

namespace {

Array copied(const ConstArray& array) {
  Array copy(array.dtype, array.shape);
  if (copy.byte_size() > 0) std::memcpy(copy.data(), array.data, copy.byte_size());
  return copy;
}

template <class Names>
std::string joined(const Names& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

const TransformerState& as_transformer(const ModuleState::Impl& state, const char* method) {
  const auto* cache = dynamic_cast<const TransformerState*>(state.device.get());
  if (cache == nullptr) {
    refuse_unsupported(std::string(method) + " is offered by the state of a transformer, this is the state of a " +
                       std::string(state.rules->kind()));
  }
  return *cache;
}

}  // namespace

std::map<std::string, Index> ModuleState::Impl::counters() const {
  std::map<std::string, Index> all = device->counters();
  for (const auto& [name, value] : counter_edits) all[name] = value;
  return all;
}

ArrayMap ModuleState::Impl::pieces() const {
  ArrayMap all = device->pieces();
  for (const auto& [name, array] : edits) all[name] = array;
  return all;
}

void ModuleState::Impl::check_edits() const {
  if (edits.empty()) return;
  for (const WeightSpec& piece : rules->pieces(batch_size, max_tokens)) {
    const auto edit = edits.find(piece.name);
    if (edit != edits.end()) refuse_other_array(piece.name, edit->second, piece.shape);
  }
}

void ModuleState::Impl::apply() {
  if (applied) return;
  // A new counter can change how the exposed pieces are read: keep all of them as they are exposed now.
  if (!counter_edits.empty()) {
    for (auto& [name, array] : device->pieces()) edits.try_emplace(name, std::move(array));
  }
  const ConstArrayMap views(edits.begin(), edits.end());
  device->set(views, counter_edits);
  applied = true;
}

void ModuleState::Impl::forget_edits() {
  edits.clear();
  counter_edits.clear();
  applied = true;
}

void ModuleState::Impl::replace(const BlockState& state) {
  device = state.clone();
  forget_edits();
}

ModuleState::ModuleState(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
ModuleState::~ModuleState() = default;
ModuleState::ModuleState(ModuleState&&) noexcept = default;

Index ModuleState::batch_size() const { return impl_->batch_size; }
std::string_view ModuleState::profile() const { return block_profile(impl_->rules->kind()); }

void ModuleState::set_profile(const std::string& profile) {
  if (profile == this->profile()) return;
  refuse_value("the profile of the state is " + profile + ", that of the block is " + std::string(this->profile()));
}

ArrayMap ModuleState::pieces() const { return impl_->pieces(); }
std::map<std::string, Index> ModuleState::counters() const { return impl_->counters(); }

void ModuleState::set(const ConstArrayMap& pieces, const std::map<std::string, Index>& counters) {
  const StateGuard guard(*impl_);
  std::vector<std::string> piece_names;
  for (const WeightSpec& piece : impl_->rules->pieces(impl_->batch_size, impl_->max_tokens)) {
    piece_names.push_back(piece.name);
  }
  const auto contains = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const auto& [name, array] : pieces) {
    if (!contains(piece_names, name)) {
      refuse_value("the state has no piece '" + name + "'; it has " + joined(piece_names));
    }
  }
  const std::vector<std::string> counter_names = impl_->rules->counters();
  const std::map<std::string, Index> fixed = impl_->device->counters();
  for (const auto& [name, value] : counters) {
    if (contains(counter_names, name)) {
      if (name == "pending" && value != 0 && value != 1) {
        refuse_value("pending must be 0 or 1, got " + std::to_string(value));
      }
      continue;
    }
    const auto kept = fixed.find(name);
    if (kept == fixed.end()) refuse_value("the state has no counter '" + name + "'; it has " + joined(counter_names));
    if (kept->second != value) {
      refuse_value(name + " of a state is fixed at " + std::to_string(kept->second) + ", got " + std::to_string(value));
    }
  }
  for (const auto& [name, array] : pieces) impl_->edits[name] = copied(array);
  for (const std::string& name : counter_names) {
    if (const auto given = counters.find(name); given != counters.end()) impl_->counter_edits[name] = given->second;
  }
  impl_->applied = false;
}

void ModuleState::set_input_states(ConstArray theta, ConstArray h, ConstArray k, ConstArray v) {
  const auto* state = dynamic_cast<const Mamba3State*>(impl_->device.get());
  if (state == nullptr) {
    refuse_unsupported("set_input_states is offered by the state of a mamba3 block, this is the state of a " +
                       std::string(impl_->rules->kind()));
  }
  refuse_other_array("theta", theta, state->piece_shape(Mamba3Piece::theta));
  refuse_other_array("h", h, state->piece_shape(Mamba3Piece::h));
  refuse_other_array("k", k, state->piece_shape(Mamba3Piece::pending_k));
  refuse_other_array("v", v, state->piece_shape(Mamba3Piece::pending_v));
  set({{"theta", theta}, {"h", h}, {"pending_k", k}, {"pending_v", v}}, {{"pending", 1}});
}

Array ModuleState::keys() const { return as_transformer(*impl_, "keys").held_keys(); }
Array ModuleState::values() const { return as_transformer(*impl_, "values").held_values(); }

}  // namespace samba
