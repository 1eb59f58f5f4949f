// What a stack of layers needs from a block, whatever its kind: device pointers in, device pointers out.
// Shapes, dtypes and finiteness are the caller's business here; the public, checked interface is BlockModule
// (module.h).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "samba/blocks/stages.h"
#include "samba/core/array.h"
#include "samba/kernels/executor.h"
#include "samba/kernels/weight.h"

namespace samba {

struct WeightSpec {
  std::string name;  // "in_proj.weight"
  Shape shape;
};

// The state of one block for a fixed number of batch rows: caches, buffers and counters in device memory.
class BlockState {
 public:
  virtual ~BlockState() = default;
  virtual Index batch_size() const = 0;
  virtual void reset() = 0;  // back to the empty sequence
  virtual std::unique_ptr<BlockState> clone() const = 0;

  // The exposed pieces (spec 20 section 5, spec 40 section 6) as host arrays in their public layout, and the counters.
  virtual ArrayMap pieces() const = 0;
  virtual std::map<std::string, Index> counters() const = 0;
  // Overwrites the pieces and counters named; the others keep their values. Shapes must be those of pieces():
  // Error(value).
  virtual void set(const ConstArrayMap& pieces, const std::map<std::string, Index>& counters) = 0;
};

class Block {
 public:
  virtual ~Block() = default;

  virtual std::string_view kind() const = 0;  // "transformer", "mamba3"
  virtual Index d_model() const = 0;
  virtual const std::vector<WeightSpec>& weight_specs() const = 0;  // in registry order

  // Device memory in the order of weight_specs(); it must stay valid while the block is used. Any matrix (rank 2) may
  // be packed: the block computes with its expanded values. Weights are read when bound: after editing them call
  // weights_changed(), which re-reads what was laid out anew and allocates nothing.
  virtual void bind_weights(std::span<const WeightView> weights) = 0;
  virtual void weights_changed() = 0;

  // True when bound weight number `weight` is laid out anew for products, and nothing else of it is read by a forward:
  // afterwards its memory may go as long as neither backward() nor weights_changed() is called. laid_out() is what was
  // made of it; null for the others.
  virtual bool lays_out(std::size_t weight) const = 0;
  virtual const PreparedWeight* laid_out(std::size_t weight) const = 0;

  // max_tokens: capacity in positions (a Mamba state has none and ignores it).
  virtual std::unique_ptr<BlockState> allocate_state(Index batch_size, Index max_tokens) const = 0;

  // Refuses (Error(value)) what a call of `length` more tokens would do wrong: capacity, positions, angles, counters.
  // Changes nothing. `state` may be null (a fresh call).
  virtual void check_call(const BlockState* state, Index length) const = 0;

  // x, y: [batch * length, d_model]; y may not be x. With a state the call continues it. `stages` may be null.
  virtual void forward(Index batch, Index length, const float* x, float* y, BlockState* state, Workspace& workspace,
                       StageRecorder* stages) = 0;

  // One token for each of several sequences, each with a state of its own (batch 1) at a position of its own. x, y:
  // [states.size(), d_model]; row i gets the bits of forward(1, 1, ...) with states[i].
  virtual void step_rows(std::span<BlockState* const> states, const float* x, float* y, Workspace& workspace);

  // Gradients of the zero-state forward of x: dx [batch * length, d_model] and one gradient per weight in the order of
  // weight_specs(), overwritten. dx may be dy. `stages`: the forward's, then the backward's.
  virtual void backward(Index batch, Index length, const float* x, const float* dy, float* dx,
                        std::span<float* const> weight_gradients, Workspace& workspace, StageRecorder* stages) = 0;
};

}  // namespace samba
