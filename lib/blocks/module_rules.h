// What the checked interface has to know about a kind of block: its construction, the order and the words of its
// refusals, and what a session and a tape of it do.
#pragma once

#include <array>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "samba/blocks/block.h"
#include "samba/kernels/executor.h"

namespace samba {

// "Mamba3" of "mamba3": what the names of the public classes begin with, Mamba3Block, Mamba3DecodeSession.
std::string class_prefix(std::string_view kind);

class BlockRules {
 public:
  enum class Operand { x, weights, grad_output };

  virtual ~BlockRules() = default;
  virtual std::string_view kind() const = 0;
  virtual nlohmann::json options() const = 0;  // all but numeric_mode, with their values
  virtual std::unique_ptr<Block> make_block() const = 0;
  virtual std::vector<WeightSpec> weight_specs() const = 0;

  // --- state ---
  // Pieces in the order of their checks.
  virtual std::vector<WeightSpec> pieces(Index batch_size, Index max_tokens) const = 0;
  // Names the caller can set; a fixed counter is refused unless it keeps its value.
  virtual std::vector<std::string> counters() const = 0;
  // Error(value) when a state of `other` cannot serve this block.
  virtual void check_same_states(const BlockRules& other) const = 0;
  [[noreturn]] virtual void refuse_batch(Index of_x, Index of_state) const = 0;
  // Ranges of counters without which a state cannot be read.
  virtual void check_counters(const std::map<std::string, Index>& counters) const = 0;
  // Refuses NaN and infinity in what a call would read.
  virtual void check_finite(const BlockState& state) const = 0;

  // --- sessions ---
  // The counter of the caller's state that follows an open session; empty: none does.
  virtual std::string followed_counter() const { return {}; }
  virtual bool session_has_forward() const { return false; }

  // --- reports ---
  virtual ArrayMap reports(const Block&) const { return {}; }
  virtual void set_reports(Block&, bool) const {}

  // --- owned weights and session counters ---
  virtual bool has_owned_weights() const { return false; }

  // --- gradient ---
  // Refuses (Error(unsupported)) options the gradient is not defined for; `method` is what the message speaks of.
  // `extended`: gradients of the program's own are wanted too (docs/spec-extensions.md).
  virtual void check_differentiable(const std::string& method, bool extended) const = 0;
  virtual std::array<Operand, 3> backward_order() const = 0;  // of the finiteness checks
  virtual void check_backward_length(Index) const {}          // just before x is tested

  struct TapeCost {
    std::int64_t stage_bytes = 0;
    std::int64_t ops = 0;
  };
  virtual TapeCost tape_cost(Index batch, Index length) const = 0;
  // Floats a forward keeps for its gradient; 0: a block of this kind recomputes.
  virtual Index kept_floats(const Block&, Index) const { return 0; }
  virtual void forward_keeping(Block&, Index, Index, const float*, float*, float*, Workspace&) const {}
  virtual void backward_from(Block&, Index, Index, const float*, float*, const float*, float*, std::span<float* const>,
                             Workspace&, StageRecorder*) const {}
};

// Checks the options and the names, dtypes and shapes of the weights.
std::shared_ptr<const BlockRules> make_transformer_rules(Executor& executor, const nlohmann::json& options,
                                                         const ConstArrayMap& weights);
std::shared_ptr<const BlockRules> make_mamba1_rules(Executor& executor, const nlohmann::json& options,
                                                    const ConstArrayMap& weights);
std::shared_ptr<const BlockRules> make_mamba2_rules(Executor& executor, const nlohmann::json& options,
                                                    const ConstArrayMap& weights);
std::shared_ptr<const BlockRules> make_mamba3_rules(Executor& executor, const nlohmann::json& options,
                                                    const ConstArrayMap& weights);

}  // namespace samba
