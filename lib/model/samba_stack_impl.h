// The inside of SambaStack, shared by its forward and its gradient.
#pragma once

#include <atomic>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "samba/core/busy_guard.h"
#include "samba/kernels/weight.h"
#include "samba/model/activation_plan.h"
#include "samba/model/decode_step.h"
#include "samba/model/samba_stack.h"
#include "samba/model/weight_source.h"

namespace samba {

struct SambaStack::Impl {
  Impl(Executor& executor, const StackConfig& config, Use use);

  float* tensor(std::size_t index) { return parameters.data() + registry.tensors()[index].offset; }
  float* flat_parameters();  // refused for inference
  // For inference: of a tensor that is not only laid out.
  WeightView weight(std::size_t index) { return use == Use::training ? tensor(index) : stored[index].view(); }
  bool is_stored(std::size_t index) const { return stored[index].byte_size() > 0; }
  // What became of a tensor that is laid out.
  const PreparedWeight& laid_out(std::size_t index) const;
  Weight host_weight(std::size_t index) const;
  WeightView embedding() { return weight(0); }
  const float* norm_weight() { return weight(registry.final_norm()).values(); }
  const float* head_weight() { return weight(registry.head()).values(); }  // of a stack that trains

  void bind();                      // when the parameters of training hold their first values
  void refresh();                   // after they changed
  void load(WeightSource& source);  // for inference
  void require_memory_for_inference() const;

  void refuse_if_inference(const char* call) const;
  // For the length of a call; refuses another one meanwhile, the one of a stage recorder included.
  struct InUse : BusyGuard {
    explicit InUse(Impl& impl) : BusyGuard(impl.busy, "the stack") {}
  };
  // Error(value) of class non_finite that names the tensor and the flat index.
  void require_finite(const char* name, Index count, const float* device);
  // An initializer list, unlike a Shape, takes no memory when nobody listens: a decode step allocates nothing.
  void record(std::string_view name, std::initializer_list<Index> shape, const float* device);

  // Makes a decode step: `layers` returns the output of the last one for `rows` tokens, one a sequence.
  template <class Layers>
  void run_step(Index rows, const Layers& layers, std::span<float> logits);

  // Refuses before anything runs: another batch or stack, capacity, positions.
  void check_call(const SambaState* state, Index batch, Index length) const;

  // hidden: (batch * length, d_model), the output of the last layer.
  float* run_layers(std::span<const std::int32_t> ids, Index batch, Index length, SambaState* state);
  // What a forward leaves for its gradient.
  struct Kept {
    // Of layer i, and behind the last one its output. Layers of one segment but its first share memory with those of
    // the other segments: what they point to is that of the segment that was computed last.
    std::vector<float*> inputs;
    std::vector<float*> stores;  // of layer i (KeepingBlock); null: its forward runs again in the backward
    std::size_t segment = 1;     // layers
  };
  ActivationPlan activation_plan(Index rows) const;
  Kept take_tape(Index rows);
  Kept run_layers_keeping(const std::int32_t* device_ids, Index batch, Index length, const DropoutKey* dropout);
  // The inputs of a segment anew, from that of its first layer.
  void recompute_segment(Index batch, Index length, const Kept& kept, std::size_t first, std::size_t end);
  void layer_backward(Index batch, Index length, const Kept& kept, std::size_t layer, float* d_hidden, float* gradient);
  // The rows of the embedding, scaled if the stack scales them.
  void embed(Index batch, Index length, const std::int32_t* device_ids, float* hidden);

  struct Head {
    float* normed = nullptr;    // (rows, d_model), the final norm's output
    float* logits = nullptr;    // (rows, vocab)
    float* squashed = nullptr;  // (rows, vocab), what the gradient of a softcap reads; null without one
  };
  // Final norm, head, softcap. `squashed` is made for a gradient only.
  Head run_head(Index batch, Index length, const float* hidden, bool for_gradient);
  // The residual stream carries a non-finite value of any layer down to the final norm.
  void require_finite_hidden(Index rows, const float* hidden);
  void final_norm(Index rows, const float* hidden, float* normed);
  // In place; `gradient`: the flat buffer.
  void final_norm_backward(Index rows, const float* hidden, float* d_hidden, float* gradient);

  // Mean or sum over the rows by the divisor, or with `undivided` the sum before it is divided; d_logits may be null or
  // logits.
  float cross_entropy(Index rows, const float* logits, std::span<const std::int32_t> targets, float divisor,
                      float* d_logits, bool undivided = false);
  // All gradients from d_logits; `gradient`: the flat buffer, overwritten. `options`: embedding_rows and ready.
  void backward(const std::int32_t* device_ids, Index batch, Index length, const Kept& kept, const Head& head_values,
                float* d_logits, const DropoutKey* dropout, const GradientOptions& options, float* gradient);

  Executor& executor;
  StackConfig config;
  Registry registry;
  Use use;
  DeviceArray<float> parameters;     // of training
  std::vector<DeviceWeight> stored;  // for inference, in registry order; empty ones are laid out and nothing else
  WeightFormat format = WeightFormat::float32;
  std::vector<std::unique_ptr<Block>> blocks;
  std::unique_ptr<PreparedWeight> head;
  DeviceArray<float> ones;  // d_model of them, with a final norm of 1 + w
  Workspace workspace;
  std::optional<Index> activation_budget;  // bytes
  StageRecorder* recorder = nullptr;
  DecodeStep* decode_step = nullptr;  // while one is made
  std::atomic<bool> busy = false;
};

}  // namespace samba
