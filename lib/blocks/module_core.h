// The parts behind the public classes of module.h, between their source files.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "samba/blocks/module.h"
#include "samba/blocks/module_rules.h"
#include "samba/core/busy_guard.h"

namespace samba {

// The weights in device memory and a block bound to them. Sessions and tapes share it with their module; an edit that
// would be seen by one of them makes a new one.
struct BoundWeights {
  BoundWeights(Executor& executor, const BlockRules& rules, const ConstWeightMap& weights);
  // A copy for an edit: whoever makes it edits and binds.
  BoundWeights(Executor& executor, const BlockRules& rules, const BoundWeights& other);

  std::vector<DeviceWeight> arrays;  // in registry order, as they are stored
  std::unique_ptr<Block> block;
  bool known_finite = false;
  std::uint64_t version = 0;  // of the values: no two of a module are equal

  void bind();
  WeightFormat format() const;            // the packed one; float32 when nothing is packed
  void check_finite(Executor& executor);  // the first call after an edit looks
};

struct ModuleState::Impl {
  std::shared_ptr<const BlockRules> rules;
  Executor* executor = nullptr;
  Index batch_size = 0;
  Index max_tokens = 0;
  std::unique_ptr<BlockState> device;
  // What the caller has set since the last call, as given; laid over what `device` exposes.
  ArrayMap edits;
  std::map<std::string, Index> counter_edits;
  bool applied = true;  // `device` holds the edits, which still are what is exposed
  bool owned = false;   // by an open session
  std::atomic<bool> busy = false;

  std::map<std::string, Index> counters() const;
  ArrayMap pieces() const;
  void check_edits() const;  // dtypes and shapes, in the order of the rules
  void apply();              // hands the checked edits to `device`
  void forget_edits();
  void replace(const BlockState& state);  // becomes a copy of `state`, without edits
};

// Runs a public method and puts "<class>.<method>: " before the words of what it refuses.
template <class ClassName, class Body>
auto with_name(ClassName&& class_name, const char* method, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw Error(error.kind(), error.error_class(), class_name() + "." + method + ": " + error.what());
  }
}

struct BlockModule::Impl {
  Impl(Executor& executor, std::shared_ptr<const BlockRules> rules, const ConstWeightMap& weights, Use use);

  struct Input {
    Index batch = 0;
    Index length = 0;
    std::span<const float> values;
  };
  struct Call {
    Input x;
    const std::shared_ptr<BoundWeights>& weights;
    BlockState* state = nullptr;
    std::optional<std::span<const Index>> lengths;
  };

  Executor& executor;
  std::shared_ptr<const BlockRules> rules;
  std::string kind;
  Use use;
  std::shared_ptr<BoundWeights> weights;
  std::shared_ptr<BoundWeights> owned;     // the snapshot of install_owned_weights
  std::shared_ptr<BoundWeights> reported;  // whose block made the reports
  bool reports_wanted = true;
  bool extended_gradients = false;
  std::uint64_t versions = 0;           // of weights, so far
  std::uint64_t owned_generations = 0;  // snapshots, so far
  std::uint64_t session_version = 0;    // of the weights that the last stateless call used
  std::optional<SessionInfo> session_info;
  Workspace workspace;
  StageRecorder* stages = nullptr;
  std::atomic<bool> busy = false;
  std::uint64_t calls = 0;  // a tape is valid until the next one

  Index d_model() const { return weights->block->d_model(); }
  std::string class_name() const;
  template <class Body>
  auto named(const char* method, Body&& body) const {
    return with_name([&] { return class_name(); }, method, body);
  }
  void refuse_if_inference() const;
  void check_has_owned_weights() const;
  // The weights of a call without a state: the snapshot, or the live ones.
  const std::shared_ptr<BoundWeights>& stateless_weights() const { return owned != nullptr ? owned : weights; }
  void count_stateless_call(bool backward);
  Input check_input(const ConstArray& x, bool step) const;
  void check_gradient(const ConstArray& grad_output, const Input& x) const;
  // Everything about a state but its values; hands its edits to the device.
  void check_state(ModuleState::Impl& state, Index batch, Index length) const;
  void prepare_edits(ModuleState::Impl& state) const;
  // The checks of values, then the computation. Counts as a call.
  Array run(const Call& call);
  // A call of the module itself.
  Array call(const char* method, const ConstArray& x, ModuleState::Impl* state,
             std::optional<std::span<const Index>> lengths, bool step);
  // Counts as a call. Without a gradient: what a tape's forward reads.
  void check_gradient_operands(const Input& x, std::optional<std::span<const float>> grad_output);
  NamedGradients backward(const ConstArray& x, const ConstArray& grad_output);
  Taped forward_with_tape(const ConstArray& x, std::int64_t activation_budget_bytes,
                          std::int64_t minimum_replay_ops_per_byte);
  NamedGradients backward_from_tape(Tape::Impl& tape, const ConstArray& grad_output);
  NamedGradients take_gradients(const Input& x, std::span<float* const> weight_gradients, const float* dx) const;
  void set_weight(std::size_t index, const ConstWeight& value);
};

// A module in use: its sessions and tapes count as the module itself.
class ModuleGuard : public BusyGuard {
 public:
  explicit ModuleGuard(BlockModule::Impl& module)
      : BusyGuard(module.busy, "the block (its decode sessions and tapes included)") {}
};

class StateGuard : public BusyGuard {
 public:
  explicit StateGuard(ModuleState::Impl& state) : BusyGuard(state.busy, "the state") {}
};

struct Tape::Impl {
  std::shared_ptr<BlockModule::Impl> module;
  std::uint64_t made_by_call = 0;
  std::shared_ptr<BoundWeights> weights;
  Index batch = 0;
  Index length = 0;
  DeviceArray<float> x;
  DeviceArray<float> kept;  // empty: the forward is computed again
  bool retained = false;
  std::int64_t stage_bytes = 0;
  bool used = false;

  void release();  // frees what it owns
};

}  // namespace samba
