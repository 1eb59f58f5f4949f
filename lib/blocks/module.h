// A block with its own weights and state on one executor, called with host arrays: the public, checked interface to the
// blocks (spec 20, 21, 30 to 32, 40, 41). Whatever a call refuses is refused before anything changes; messages hold the
// names and numbers of the spec's refusal tables.
//
// Threads: a module, its states, sessions and tapes are used by one thread at a time; re-entrant use is refused. The
// executor must outlive them all; a state, session or tape may outlive its module.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "samba/blocks/block.h"
#include "samba/core/array.h"
#include "samba/kernels/executor.h"

namespace samba {

class BlockModule;

// The state of a module for a fixed batch: the caller's. While a decode session is open on it the pieces are those of
// the last sync (or the opening); cached_tokens of a transformer stays current, the counters of Mamba-3 do not.
class ModuleState {
 public:
  struct Impl;
  explicit ModuleState(std::shared_ptr<Impl> impl);  // made by BlockModule::allocate_state
  ~ModuleState();
  ModuleState(ModuleState&&) noexcept;

  Index batch_size() const;
  ArrayMap pieces() const;  // public layout, by the names of the spec
  std::map<std::string, Index> counters()
      const;  // cached_tokens, max_tokens, window; buffered_tokens, pending (0 or 1)
  // The caller overwrites pieces (public layout) and counters. Names are tested here; dtypes, shapes, ranges and values
  // by the next call that uses them, which then refuses.
  void set(const ConstArrayMap& pieces, const std::map<std::string, Index>& counters);
  // Mamba-3 input states (spec 40 section 6.2). Refuses another shape or dtype, naming theta, h, k or v.
  void set_input_states(ConstArray theta, ConstArray h, ConstArray k, ConstArray v);

  // Transformer: the held positions, ascending, (batch, n_kv_heads, n, head_dim).
  Array keys() const;
  Array values() const;

 private:
  friend class BlockModule;
  std::shared_ptr<Impl> impl_;
};

// A forward that keeps, or later recomputes, what the gradient needs (spec 21 section 8). Owns copies of x and weights.
class Tape {
 public:
  struct Impl;
  explicit Tape(std::unique_ptr<Impl> impl);  // made by BlockModule::forward_with_tape
  ~Tape();

  bool retained() const;
  std::int64_t stage_bytes()
      const;     // the defined number of spec 21 section 8.2; 0 for Mamba-3, which always recomputes
  void close();  // on a used or closed tape nothing happens

 private:
  friend class BlockModule;
  std::unique_ptr<Impl> impl_;
};

// An open decode session (spec 20 section 7, spec 40 section 7): it owns copies of the weights and of the state.
// Destruction of an open session discards.
class DecodeSession {
 public:
  struct Impl;
  explicit DecodeSession(std::unique_ptr<Impl> impl);  // made by BlockModule::open_session
  ~DecodeSession();
  DecodeSession(DecodeSession&&) noexcept;

  Array step(ConstArray x);     // (batch, 1, d_model) or (batch, d_model) -> (batch, 1, d_model)
  Array forward(ConstArray x);  // (batch, length, d_model); transformer only
  void sync_state();            // copies the session's state out; the session stays open
  void load_state();            // copies the caller's pieces and counters in
  void close();                 // syncs and releases; on a released session nothing happens
  void discard();               // releases without copying
  bool open() const;
  std::string describe() const;  // "TransformerDecodeSession(open=true, cached_tokens=5)"

 private:
  std::unique_ptr<Impl> impl_;
};

struct NamedGradients {
  std::vector<std::string> names;  // "x", then the weights in registry order
  ArrayMap arrays;
};

class BlockModule {
 public:
  // kind: "transformer", "mamba1", "mamba2" or "mamba3". options: the block's options as a JSON object (spec 20 section
  // 1; mamba2: dt_limit, two numbers, "inf" and "-inf" included; all: numeric_mode). weights: float32 arrays by public
  // name; the module copies them. Refusals: spec 20 section 8, spec 30 section 7, spec 31 section 8, spec 40 section 9.
  BlockModule(Executor& executor, const std::string& kind, const nlohmann::json& options, const ConstArrayMap& weights);
  ~BlockModule();
  BlockModule(BlockModule&&) noexcept;

  const std::string& kind() const;
  Index d_model() const;
  const std::vector<WeightSpec>& weight_specs() const;
  std::string weight_format() const;  // "float32"
  Array weight(const std::string& name) const;
  // Overwrites a weight; a value that is not finite is found by the next call. Open sessions and tapes keep the old
  // one.
  void set_weight(const std::string& name, ConstArray value);

  // max_tokens: capacity in positions; ignored by mamba3.
  std::unique_ptr<ModuleState> allocate_state(Index batch_size, Index max_tokens = 0);

  // x (batch, length, d_model) -> the same shape.
  Array forward(ConstArray x);
  Array forward(ConstArray x, ModuleState& state);
  // Ragged: right padding of any content; padding outputs are +0.0.
  Array forward(ConstArray x, std::span<const Index> lengths);
  [[noreturn]] void forward(ConstArray x, ModuleState& state, std::span<const Index> lengths);  // always refused
  // x (batch, 1, d_model) or (batch, d_model) -> (batch, 1, d_model)
  Array step(ConstArray x, ModuleState& state);
  [[noreturn]] void step(ConstArray x);  // always refused: a state is required

  // Gradients of sum(y * grad_output) for the forward of x from the empty state.
  NamedGradients backward(ConstArray x, ConstArray grad_output);

  static constexpr std::int64_t kDefaultActivationBudget = 536870912;
  struct Taped {
    Array y;
    std::unique_ptr<Tape> tape;
  };
  Taped forward_with_tape(ConstArray x, std::int64_t activation_budget_bytes = kDefaultActivationBudget,
                          std::int64_t minimum_replay_ops_per_byte = 0);
  // Uses the tape up. Refused for a tape that is used, closed, of another block, or older than a later call.
  NamedGradients backward_from_tape(Tape& tape, ConstArray grad_output);

  DecodeSession open_session(ModuleState& state);

  // Reports of the last call by name (mamba3: h_last, k_last, v_last, theta_last); empty before the first call.
  ArrayMap reports() const;

  // Stages of the calls that follow go to `recorder` (null: nowhere), which must outlive them.
  void set_stage_recorder(StageRecorder* recorder);

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace samba
