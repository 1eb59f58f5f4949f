// A stack of blocks: embedding, layers, final norm, output head, on one executor. With a SambaConfig it is the Samba
// stack of spec 60, which adds no arithmetic of its own; any other StackConfig runs on the same code, with what
// docs/stack_arithmetic.md states.
//
// In training parameters lie in one flat device buffer in registry order. For inference a stack holds its matrices in
// the layout of the executor's products and nowhere else (a tied embedding reads its rows there), the small weights as
// they are.
//
// Token ids are int32 or int64 arrays (batch, length), every id in [0, vocab); targets have the same shape, each in
// [0, vocab) or -100 (ignored). All checks come before any arithmetic: a refused call changes nothing. Refusals are
// Error(value) that name the argument (and the flat index of a bad id or target), Error(type) for a wrong dtype. A
// non-finite value met inside is an Error(value) of class "non_finite" that names the tensor and the flat index.
//
// Threads: a stack and its states are used by one thread at a time; re-entrant use is refused. The executor must
// outlive the stack, the stack its states.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "samba/blocks/block.h"
#include "samba/blocks/stages.h"
#include "samba/core/array.h"
#include "samba/kernels/executor.h"
#include "samba/model/registry.h"
#include "samba/model/stack_config.h"
#include "samba/model/token_batch.h"
#include "samba/numerics/packed_weight.h"

namespace samba {

class Generator;
class WeightSource;

// What a state holds, on the host: of every layer the pieces in their exposed layouts and the counters. The unused rest
// of a key-value cache is left out, so that the contents fit states of any capacity.
struct StateContents {
  Index batch_size = 1;
  Index tokens = 0;              // positions consumed
  std::vector<ArrayMap> pieces;  // one a layer
  std::vector<std::map<std::string, Index>> counters;
};

// The decode state of a fixed batch: one block state a layer.
class SambaState {
 public:
  Index batch_size() const { return batch_size_; }
  Index max_tokens() const { return max_tokens_; }
  Index tokens() const { return tokens_; }  // positions consumed so far
  const StackConfig& config() const { return config_; }
  NumericMode numeric_mode() const { return numeric_mode_; }
  std::size_t layers() const { return layers_.size(); }
  BlockState& layer(std::size_t index) { return *layers_[index]; }
  const BlockState& layer(std::size_t index) const { return *layers_[index]; }

  void reset();  // back to the empty sequence
  std::unique_ptr<SambaState> clone() const;
  StateContents contents() const;

 private:
  friend class SambaStack;
  SambaState() = default;

  Index batch_size_ = 0;
  Index max_tokens_ = 0;
  Index tokens_ = 0;
  NumericMode numeric_mode_ = NumericMode::identical;  // of the executor whose values it holds
  bool broken_ = false;  // a call failed midway: every further call is refused until reset()
  StackConfig config_;   // of the stack that made it
  std::vector<std::unique_ptr<BlockState>> layers_;
};

// The coins of one training step: all its microbatches share a stream id.
struct DropoutStream {
  std::uint64_t seed = 0;
  std::uint32_t stream = 0;
};

struct GradientOptions {
  std::optional<Index> num_items;        // divisor of the loss, 1 .. 16,777,216; absent: the counted targets
  std::optional<DropoutStream> dropout;  // absent: no dropout
  Index token_offset = 0;                // tokens of the step before this microbatch

  // For rows that are a part of a microbatch (train/rank_split.h): receives the gradient of their embeddings, device
  // (batch * length, d_model), instead of its sum over tokens, which is a chain that parts do not add up to. Then the
  // loss is the sum over the rows, not divided, and the gradient of embed.weight that of a tied head alone.
  std::function<void(const float* rows)> embedding_rows;
  // Called as soon as elements [first, first + count) of the gradient hold their values, while the backward goes on.
  std::function<void(Index first, Index count)> ready;
};

struct LossAndGradients {
  float loss = 0.0F;
  Array gradients;  // (P,), flat in registry order
};

class SambaStack {
 public:
  enum class Use {
    training,   // everything
    inference,  // SambaInference: loss and loss_and_grads are refused as "inference is forward only"
                // (the only use of a stack for which inference_only_reason has one)
  };

  // Draws the initial values (initial_values.h).
  SambaStack(Executor& executor, const StackConfig& config, Generator& generator, Use use = Use::training);
  // For inference, tensor by tensor: what is in memory at once is what the stack keeps and the tensors of one layer.
  SambaStack(Executor& executor, const StackConfig& config, WeightSource& weights);
  // From named weights; refusals as load_weights.
  SambaStack(Executor& executor, const StackConfig& config, const ConstWeightMap& weights, Use use = Use::training);
  // Parameters +0 until they are written.
  SambaStack(Executor& executor, const StackConfig& config, Use use = Use::training);
  ~SambaStack();
  SambaStack(const SambaStack&) = delete;
  SambaStack& operator=(const SambaStack&) = delete;

  Executor& executor() const;
  const StackConfig& config() const;
  const Registry& registry() const;
  Use use() const;

  // ---- parameters ----

  // Replaces all weights by name; names, shapes, dtype and finiteness must fit, otherwise nothing is replaced. For
  // inference matrices may be packed (spec 50 A), all in one format: they stay packed, a tied head and embedding share
  // one, and the stack has the bits of the float32 stack of the expanded weights.
  void load_weights(const ConstWeightMap& weights);
  // The packed one, of several that of the most values; float32 when nothing is packed.
  WeightFormat weight_format() const;
  ArrayMap weights() const;          // host copies by name, expanded
  WeightMap stored_weights() const;  // in the form the stack holds them
  Array parameters() const;          // (P,), a host copy of the flat buffer
  std::string parameters_sha256() const;

  // The flat device buffer; a stack for inference has none and refuses. Whoever writes into it calls
  // parameters_changed() before the next call.
  const float* device_parameters() const;
  float* mutable_device_parameters();
  void parameters_changed();

  // ---- forward ----

  // Logits (batch, length, vocab) of a stateless call.
  Array forward(ConstArray ids);
  // Ragged batch: lengths[i] in [1, length] tokens of row i are real; ids behind them may be anything, logits there are
  // +0.
  Array forward(ConstArray ids, std::span<const Index> lengths);
  // Continues the state: logits of the new positions, the bits of one stateless call over the whole sequence.
  Array forward(ConstArray ids, SambaState& state);
  [[noreturn]] Array forward(ConstArray ids, SambaState& state, std::span<const Index> lengths);  // always refused
  // One token a row: ids (batch,) or (batch, 1) -> (batch, vocab).
  Array step(ConstArray ids, SambaState& state);
  [[noreturn]] Array step(ConstArray ids);  // always refused: a state is required

  // The same without allocations after the first call of a shape. `logits` (host): rows * vocab floats.
  void step(std::span<const std::int32_t> ids, SambaState& state, std::span<float> logits);
  // ids: batch * length, row-major. Logits of the last position of each row only: batch * vocab floats.
  void prefill(std::span<const std::int32_t> ids, Index length, SambaState& state, std::span<float> last_logits);
  // Logits on the device, valid until the next call of the stack: (batch, length, vocab). `state` may be null.
  const float* forward_device(std::span<const std::int32_t> ids, Index batch, Index length, SambaState* state);

  // One token for each of several sequences, each with a state of its own (batch 1) at a position of its own: row i has
  // the bits of a step of states[i] alone. `logits` (host): rows * vocab floats.
  void step_rows(std::span<const std::int32_t> ids, std::span<SambaState* const> states, std::span<float> logits);

  std::unique_ptr<SambaState> allocate_state(Index batch_size, Index max_tokens);
  // A state with the contents of another one of this stack, for `max_tokens` positions in all. Error(value): contents
  // of another stack (another number of layers, names or shapes of pieces), max_tokens below contents.tokens.
  std::unique_ptr<SambaState> restore_state(const StateContents& contents, Index max_tokens);

  // Scratch memory of the calls: the most that was in use; and, before the first call, one block of a size that is
  // known (train/memory_plan.h), so that it is not found by doubling.
  std::size_t workspace_bytes() const;
  void reserve_workspace(std::size_t bytes);

  // ---- loss and gradients ----

  // Gradients are refused on an executor of the numeric mode deterministic.
  // Mean cross-entropy over the counted targets, without dropout. A batch without one is refused.
  float loss(ConstArray inputs, ConstArray targets);
  LossAndGradients loss_and_grads(ConstArray inputs, ConstArray targets, const GradientOptions& options = {});
  // The same into a device buffer of P floats, which is overwritten. ids, targets: batch * length, row-major.
  float loss_and_grads_device(std::span<const std::int32_t> inputs, std::span<const std::int32_t> targets, Index batch,
                              Index length, const GradientOptions& options, float* gradient);

  // What a gradient keeps between its forward and its backward, the tape: inputs of layers, and what their own
  // gradients read as far as there is room. With a budget the tape of a call takes at most so many bytes; dropped
  // values are computed again, with the same bits. A call whose smallest tape is larger is refused with the bytes it
  // needs. Without a budget (null) every input is kept, beside at most 512 MiB of the rest. The workspace of a running
  // kernel and the logits are no part of the tape.
  void set_activation_budget(std::optional<Index> bytes);
  Index activation_bytes(Index rows) const;  // of the tape of a gradient of `rows` tokens

  // Stages of the calls that follow go to `recorder` (null: nowhere): the stack's by the names of spec 60 section 12.
  void set_stage_recorder(StageRecorder* recorder);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace samba
