// A block with its own weights and state on one executor, called with host arrays: the public, checked interface to the
// blocks (spec 20, 21, 40, 41). Whatever a call refuses is refused before anything changes; messages hold the names and
// numbers of the spec's refusal tables.
//
// Threads: a module, its states, sessions and tapes are used by one thread at a time; re-entrant use is refused.
#pragma once

#include <memory>
#include <optional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "samba/blocks/block.h"
#include "samba/core/array.h"
#include "samba/kernels/executor.h"

namespace samba {

class BlockModule;
class DecodeSession;

// The state of a module for a fixed batch: the caller's. While a decode session is open it owns the state, and the
// exposed pieces are those of the last sync (or the opening).
class ModuleState {
 public:
  ~ModuleState();
  Index batch_size() const;
  ArrayMap pieces() const;                        // public layout, by the names of the spec
  std::map<std::string, Index> counters() const;  // cached_tokens; buffered_tokens, pending (0 or 1); max_tokens, window ...
  // The caller edits pieces (public layout; dtype and shape are tested by the next call, as the spec says) and counters.
  void set(const ConstArrayMap& pieces, const std::map<std::string, Index>& counters);
  // Mamba-3 input states (spec 40 section 6.2): theta, h, k, v.
  void set_input_states(ConstArray theta, ConstArray h, ConstArray k, ConstArray v);

 private:
  friend class BlockModule;
  friend class DecodeSession;
  struct Impl;
  explicit ModuleState(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A forward that keeps, or later recomputes, what the gradient needs (spec 21 section 8). Owns copies of x and weights.
class Tape {
 public:
  ~Tape();
  bool retained() const;
  std::int64_t stage_bytes() const;
  void close();

 private:
  friend class BlockModule;
  struct Impl;
  explicit Tape(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// An open decode session (spec 20 section 7, spec 40 section 7). Destruction of an open session discards.
class DecodeSession {
 public:
  ~DecodeSession();
  DecodeSession(DecodeSession&&) noexcept;
  Array step(ConstArray x);     // (batch, 1, d_model) or (batch, d_model) -> (batch, 1, d_model)
  Array forward(ConstArray x);  // transformer only
  void sync_state();
  void load_state();
  void close();
  void discard();
  bool open() const;
  std::string describe() const;  // short text: open, rows or cached tokens

 private:
  friend class BlockModule;
  struct Impl;
  explicit DecodeSession(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct NamedGradients {
  std::vector<std::string> names;  // "x", then the weights in registry order
  ArrayMap arrays;
};

class BlockModule {
 public:
  // kind: "transformer" or "mamba3". options: the block's options as a JSON object (spec 20 section 1; mamba3: none).
  // weights: float32 arrays by public name; the module copies them. Refusals: spec 20 section 8, spec 40 section 9.
  BlockModule(Executor& executor, const std::string& kind, const nlohmann::json& options, const ConstArrayMap& weights);
  ~BlockModule();

  const std::string& kind() const;
  Index d_model() const;
  const std::vector<WeightSpec>& weight_specs() const;
  Array weight(const std::string& name) const;
  void set_weight(const std::string& name, ConstArray value);  // same shape; open sessions keep the old one

  std::unique_ptr<ModuleState> allocate_state(Index batch_size, Index max_tokens = 0);

  Array forward(ConstArray x);
  Array forward(ConstArray x, ModuleState& state);
  Array forward(ConstArray x, std::span<const Index> lengths);              // ragged
  [[noreturn]] Array forward(ConstArray x, ModuleState& state, std::span<const Index> lengths);  // always refused
  Array step(ConstArray x, ModuleState& state);
  [[noreturn]] Array step(ConstArray x);  // always refused: a state is required

  NamedGradients backward(ConstArray x, ConstArray grad_output);

  static constexpr std::int64_t kDefaultActivationBudget = 536870912;
  Array forward_with_tape(ConstArray x, std::unique_ptr<Tape>& tape,
                          std::int64_t activation_budget_bytes = kDefaultActivationBudget,
                          std::int64_t minimum_replay_ops_per_byte = 0);
  NamedGradients backward_from_tape(Tape& tape, ConstArray grad_output);

  DecodeSession open_session(ModuleState& state);

  // Reports of the last call by name (mamba3: h_last, k_last, v_last, theta_last); empty before the first call.
  ArrayMap reports() const;

  // Stages of the calls that follow go to `recorder` (null: nowhere).
  void set_stage_recorder(StageRecorder* recorder);

 private:
  friend class DecodeSession;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace samba
