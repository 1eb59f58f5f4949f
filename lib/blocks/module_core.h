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

namespace samba {

// The weights in device memory and a block bound to them. Sessions and tapes share it with their module; an edit that
// would be seen by one of them makes a new one.
struct BoundWeights {
  BoundWeights(Executor& executor, const BlockRules& rules);  // uninitialised weights, nothing bound

  std::vector<DeviceArray<float>> arrays;  // in registry order
  std::unique_ptr<Block> block;
  bool known_finite = false;

  void bind();
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

  std::map<std::string, Index> counters() const;
  ArrayMap pieces() const;
  void check_edits() const;  // dtypes and shapes, in the order of the rules
  void apply();              // hands the checked edits to `device`
  void forget_edits();
  void replace(const BlockState& state);  // becomes a copy of `state`, without edits
};

struct BlockModule::Impl {
  Impl(Executor& executor, std::shared_ptr<const BlockRules> rules);

  struct Input {
    Index batch = 0;
    Index length = 0;
    std::span<const float> values;
  };
  struct Call {
    Input x;
    BoundWeights& weights;
    BlockState* state = nullptr;
    std::optional<std::span<const Index>> lengths;
  };

  Executor& executor;
  std::shared_ptr<const BlockRules> rules;
  std::string kind;
  std::shared_ptr<BoundWeights> weights;
  std::shared_ptr<BoundWeights> reported;  // whose block made the reports
  Workspace workspace;
  StageRecorder* stages = nullptr;
  std::atomic<bool> busy = false;
  std::uint64_t calls = 0;  // a tape is valid until the next one

  Index d_model() const { return weights->block->d_model(); }
  Input check_input(const ConstArray& x, bool step) const;
  void check_gradient(const ConstArray& grad_output, const Input& x) const;
  // Everything about a state but its values; hands its edits to the device.
  void check_state(ModuleState::Impl& state, Index batch, Index length) const;
  void prepare_edits(ModuleState::Impl& state) const;
  // The checks of values, then the computation. Counts as a call.
  Array run(const Call& call);
  // A call of the module itself.
  Array call(const ConstArray& x, ModuleState::Impl* state, std::optional<std::span<const Index>> lengths, bool step);
  NamedGradients take_gradients(const Input& x, std::span<float* const> weight_gradients, const float* dx) const;
  void set_weight(std::size_t index, const float* values);
};

// Marks a module as in use for the length of one call; refuses a second one meanwhile.
class BusyGuard {
 public:
  explicit BusyGuard(BlockModule::Impl& module);
  ~BusyGuard() { module_.busy = false; }
  BusyGuard(const BusyGuard&) = delete;
  BusyGuard& operator=(const BusyGuard&) = delete;

 private:
  BlockModule::Impl& module_;
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
