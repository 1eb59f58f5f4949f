// The transformer block of spec 20 and its gradient (spec 21) on one executor.
#pragma once

#include <array>
#include <memory>

#include "samba/blocks/block_weights.h"
#include "samba/blocks/keeping_block.h"
#include "samba/blocks/rotary_table.h"
#include "samba/blocks/transformer/transformer_options.h"
#include "samba/blocks/transformer/transformer_state.h"
#include "samba/kernels/linear_groups.h"

namespace samba {

// What a forward leaves for the backward and the stages (spec 21 section 4), [M, width] each, the sums [M].
struct TransformerActivations {
  float* norm1_sumsq = nullptr;
  float* norm1 = nullptr;
  float* q_heads = nullptr;  // what the norm of the heads reads; null without one, and in a forward that keeps nothing
  float* k_heads = nullptr;
  float* q_rope = nullptr;
  float* k_rope = nullptr;
  float* v = nullptr;
  float* context = nullptr;
  float* residual1 = nullptr;
  float* norm2_sumsq = nullptr;
  float* norm2 = nullptr;
  float* gate = nullptr;  // null in an ungated MLP
  float* up = nullptr;
  float* act = nullptr;
  float* gated = nullptr;  // null in an ungated MLP
};

class TransformerBlock final : public KeepingBlock {
 public:
  // Layers of equal rotary options can share a table; null: the block makes its own.
  TransformerBlock(Executor& executor, TransformerOptions options, std::shared_ptr<RotaryTable> rotary = nullptr);

  std::string_view kind() const override { return "transformer"; }
  Index d_model() const override { return options_.d_model; }
  const TransformerOptions& options() const { return options_; }
  const std::shared_ptr<RotaryTable>& rotary() const { return rotary_; }
  const std::vector<WeightSpec>& weight_specs() const override { return weight_specs_; }

  void bind_weights(std::span<const WeightView> weights) override;
  void weights_changed() override;
  // The planes of fixed15_v1 do not hold the weight itself.
  bool lays_out(std::size_t weight) const override;
  const PreparedWeight* laid_out(std::size_t weight) const override;

  std::unique_ptr<BlockState> allocate_state(Index batch_size, Index max_tokens) const override;
  // Refuses, in this order: another kind of state, positions, angles, capacity (spec 20 section 9).
  void check_call(const BlockState* state, Index length) const override;

  void forward(Index batch, Index length, const float* x, float* y, BlockState* state, Workspace& workspace,
               StageRecorder* stages) override;
  void step_rows(std::span<BlockState* const> states, const float* x, float* y, Workspace& workspace) override;
  void backward(Index batch, Index length, const float* x, const float* dy, float* dx,
                std::span<float* const> weight_gradients, Workspace& workspace, StageRecorder* stages) override;

  Index kept_floats(Index rows) const override;
  void forward_keeping(Index batch, Index length, const float* x, float* y, float* store,
                       Workspace& workspace) override;
  void backward_from(Index batch, Index length, const float* x, float* store, const float* dy, float* dx,
                     std::span<float* const> weight_gradients, Workspace& workspace, StageRecorder* stages) override;

 private:
  struct Call;      // the arguments of one forward
  struct Gradient;  // the arguments of one backward

  void lay_out_weights();
  void prepare_planes(std::unique_ptr<PreparedWeight>& prepared, TransformerWeight which);
  const float* weight(TransformerWeight which) const { return weights_.elements(static_cast<std::size_t>(which)); }
  const float* matrix(TransformerWeight which, Workspace& workspace) const {
    return weights_.matrix(static_cast<std::size_t>(which), workspace);
  }
  // Places the activations in `store` and returns the floats they take. Without `keep` the MLP reuses its arrays.
  Index lay_out(Index rows, bool keep, float* store, TransformerActivations& activations) const;

  // Refuses (Error(value)) contractions too long for fixed15_v1: the last refusal of a call (spec 20 section 9).
  void check_contractions() const;
  void run_forward(const Call& call);  // everything before down_proj
  void finish_forward(const Call& call, float* y);
  void project_heads(const Call& call);
  void rotate_heads(const Call& call, const float* q, const float* k);
  void record_inverse_frequencies(const Call& call);
  AttentionShape attention_shape(Index batch, Index length, Index first_position) const;
  void attend(const Call& call);
  void attend_row(const Call& call, Index row);
  void quantize_keys(const Call& call, Index rows, KeyValueView& view);
  void attend_to(const Call& call, const AttentionShape& shape, const KeyValueView& view);
  void record_span(const Call& call, const AttentionShape& shape, const KeyValueView& view);
  void activate(const Call& call);
  void normalize(TransformerWeight scale, TransformerWeight bias, Index rows, const float* x, float* y, float* sumsq);
  void normalize_heads(TransformerWeight scale, Index heads, const float* x, float* y);
  void project(const PreparedWeight& prepared, TransformerWeight bias, Index rows, const float* x, float* y);
  // y = residual + projection; stages hear of the projection as `stage`.
  void project_onto(const Call& call, const PreparedWeight& prepared, TransformerWeight bias, const float* x,
                    const float* residual, std::string_view stage, float* y);
  // gate, up, act and gated of the call.
  void project_wide(const Call& call);
  // Of a weight that the block has: its product, with a bias where there is one.
  LinearTerm term(const PreparedWeight& prepared, TransformerWeight bias, float* y) const {
    return {&prepared, y, options_.has(bias) ? weight(bias) : nullptr, nullptr};
  }

  // dx of a norm of the block and the gradients of its weights; dot[rows] is filled where the default norm has it.
  void norm_backward(const Gradient& gradient, TransformerWeight scale, TransformerWeight bias, const float* x,
                     const float* dy, float* dx, float* dot);
  // In place: the gradient of the normed heads becomes that of the projected ones.
  void heads_backward(const Gradient& gradient, TransformerWeight scale, Index heads, const float* x, float* d);
  void bias_gradient(const Gradient& gradient, TransformerWeight bias, const float* d_out);
  void mlp_backward(const Gradient& gradient, float* d_norm2);
  void activation_backward(const Gradient& gradient, const float* d_wide, float* d_up, float* d_gate);
  void attention_backward(const Gradient& gradient, const float* d_residual, float* d_norm1);
  void scores_backward(const Gradient& gradient, const float* d_context, float* dq, float* dk, float* dv);

  Executor& executor_;
  TransformerOptions options_;
  LinearGroups* groups_;  // null: the executor offers none, or the products are not float32 ones
  std::vector<WeightSpec> weight_specs_;
  std::shared_ptr<RotaryTable> rotary_;
  BlockWeights weights_;
  std::unique_ptr<PreparedWeight> q_proj_, k_proj_, v_proj_, o_proj_, gate_proj_, up_proj_, down_proj_;
};

}  // namespace samba
