// A block with its own weights and state on one executor, called with host arrays: the public, checked interface to the
// blocks (spec 20, 21, 30 to 32, 40, 41). Whatever a call refuses is refused before anything changes; messages begin
// with the public class and method and hold the names and numbers of the spec's refusal tables.
//
// One set of classes serves every kind. The documented names and their counterparts here:
//
//   TransformerBlock, Mamba1Block, Mamba2Block, Mamba3Block   BlockModule of the kind "transformer", "mamba1", ...
//   TransformerBlockInference, Mamba1BlockInference, ...      the same with BlockModule::Use::inference
//   TransformerState, Mamba1State, Mamba2State, Mamba3State   ModuleState; their arrays: pieces(), their integers:
//   counters() TransformerDecodeSession, Mamba1DecodeSession, ...        DecodeSession the tape, the tape's handle Tape
//
// A documented member has the name it has there, unless a comment gives another.
//
// Threads: a module, its states, sessions and tapes are used by one thread at a time; re-entrant use is refused. The
// executor must outlive them all; a state, session or tape may outlive its module.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "samba/blocks/block.h"
#include "samba/core/array.h"
#include "samba/kernels/executor.h"
#include "samba/numerics/packed_weight.h"

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
  std::string_view profile() const;  // the arithmetic of the block that made it
  // Says where pieces come from that the caller puts in: Error(value) for another profile than the block's.
  void set_profile(const std::string& profile);
  // Copies in the public layout: k_cache, v_cache; conv_window, h; buffer_xbc, buffer_dtraw; theta, buffer_qrot,
  // buffer_krot, buffer_v, buffer_dt, buffer_sig, buffer_adt, pending_k, pending_v. What is None there
  // (affine_boundary, affine_a, affine_b of Mamba-1) is absent.
  ArrayMap pieces() const;
  // cached_tokens, max_tokens, window, n_kv_heads, head_dim; profile_id, absolute_position; buffered_tokens; pending (0
  // or 1).
  std::map<std::string, Index> counters() const;
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
  [[noreturn]] void save(const std::filesystem::path& path) const;  // always refused: a tape is not serialisable

 private:
  friend class BlockModule;
  std::unique_ptr<Impl> impl_;
};

// An open decode session (spec 20 section 7, spec 30 section 6, spec 40 section 7): it owns copies of the weights and
// of the state. Leaving a `with` block is close(); destruction of an open session is discard().
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
  bool open() const;            // is_open
  ModuleState state() const;    // the caller's: another handle to it
  std::string describe()
      const;  // repr: "TransformerDecodeSession(open=true, cached_tokens=5)", "...(open=true, rows=2)"

 private:
  std::unique_ptr<Impl> impl_;
};

struct NamedArrays {
  std::vector<std::string> names;  // in their order
  ArrayMap arrays;
};
using NamedGradients = NamedArrays;  // "x", then the weights in registry order

// What the stateless calls of a Mamba-3 block did with the weights and the stages (spec 40 section 7). This program
// holds no stages between calls: its backward always computes them anew.
struct SessionInfo {
  Index weight_uploads = 0;   // calls that found other values than the call before: the first one, and
  Index weight_recopies = 0;  // of these, those after an edit, an install or a release
  Index weight_reuses = 0;    // calls that found the weights of the call before
  Index backward_reuses = 0;  // 0
  Index backward_recomputes = 0;
  Index stages_held = 0;  // 0

  bool operator==(const SessionInfo&) const = default;
};

class BlockModule {
 public:
  enum class Use {
    training,   // everything
    inference,  // no gradients: backward and the tape are refused as "inference is forward only"
  };

  // kind: "transformer", "mamba1", "mamba2" or "mamba3". options: the block's options as a JSON object, or null
  // (block_options.h lists them). weights: by public name, float32 arrays, or packed matrices of one format (spec 50
  // A); the module copies them, so that edits of the caller's arrays are not seen (set_weight edits). A packed block
  // has the bits of the float32 block of the expanded weights, gradients included. Refusals: spec 20 section 8, spec 30
  // section 7, spec 31 section 8, spec 40 section 9.
  BlockModule(Executor& executor, const std::string& kind, const nlohmann::json& options, const ConstWeightMap& weights,
              Use use = Use::training);
  ~BlockModule();
  BlockModule(BlockModule&&) noexcept;

  const std::string& kind() const;
  Use use() const;
  std::string class_name() const;    // "Mamba3Block", "Mamba3BlockInference"
  std::string_view profile() const;  // of the arithmetic: "mojolearn.identical.mamba3.siso.fp32.v1"

  // Every option with its value, numbers as the doubles that equal their float32: the constructor takes it back.
  nlohmann::json options() const;

  Index d_model() const;
  const std::vector<WeightSpec>& weight_specs() const;  // names and shapes in registry order
  Index parameter_count() const;
  std::string weight_format() const;            // "float32", or the format of the packed ones: "bfloat16", "int8"
  Array weight(const std::string& name) const;  // a copy, expanded when the weight is packed
  ArrayMap weights() const;
  WeightMap stored_weights() const;  // copies in the form the block holds them
  // A view of a float32 weight in the executor's memory, valid until the next set_weight. Refused for a packed one.
  const float* device_weight(const std::string& name) const;
  // Overwrites a weight, in its form or another; a value that is not finite is found by the next call. Open sessions
  // and tapes keep the old one.
  void set_weight(const std::string& name, const ConstWeight& value);

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

  // The reference gives a transformer block a gradient under its default options only, and so do the calls above and
  // below. After this call they have the program's own gradient under every option but fixed15_v1
  // (docs/spec-extensions.md section 1); the bits of the default options are the same.
  void admit_extended_gradients();

  static constexpr std::int64_t kDefaultActivationBudget = 536870912;
  struct Taped {
    Array y;
    std::unique_ptr<Tape> tape;
  };
  Taped forward_with_tape(ConstArray x, std::int64_t activation_budget_bytes = kDefaultActivationBudget,
                          std::int64_t minimum_replay_ops_per_byte = 0);
  // Uses the tape up. Refused for a tape that is used, closed, of another block, or older than a later call.
  NamedGradients backward_from_tape(Tape& tape, ConstArray grad_output);

  DecodeSession open_session(ModuleState& state);  // decode_session(state), _decode_session(state)

  // Reports of the last forward, step or session step by name: mamba2: h_last (h_last_); mamba3: h_last, k_last,
  // v_last, theta_last (h_last_, ...). Empty before the first call. They are made unless nobody wants them: h_last
  // costs a chunk product a call; then they read as absent.
  ArrayMap reports() const;
  void set_reports(bool wanted);

  // ---- mamba3: owned weights and session counters (spec 40 section 7) ----

  // Takes a snapshot of the weights, which must be finite, and returns its generation number (1, 2, ...). Calls without
  // a state and gradients use it from then on; calls with a state and sessions use the weights as they are.
  std::uint64_t install_owned_weights();
  void release_owned_weights();                     // none installed: nothing happens
  NamedArrays export_owned_weights() const;         // copies in registry order; refused when none is installed
  std::optional<SessionInfo> session_info() const;  // absent before the first call without a state

  // ---- files (docs/formats/block.md) ----

  // Weights (those of the snapshot when one is installed), options, kind and profile. A tape stays valid.
  void save(const std::filesystem::path& path) const;
  // The very same block; a saved snapshot is installed again. A damaged or foreign file is Error(corrupt), a block of
  // another profile Error(value).
  static BlockModule load(Executor& executor, const std::filesystem::path& path, Use use = Use::training);

  // Stages of the calls that follow go to `recorder` (null: nowhere), which must outlive them.
  void set_stage_recorder(StageRecorder* recorder);

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace samba
