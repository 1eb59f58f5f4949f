// The Mamba-1 block of spec 30 and its gradient (spec 32 section 3) on one executor.
#pragma once

#include <array>
#include <memory>

#include "samba/blocks/block.h"
#include "samba/blocks/block_weights.h"
#include "samba/blocks/mamba1/mamba1_state.h"
#include "samba/blocks/weight_checks.h"
#include "samba/kernels/conv.h"
#include "samba/kernels/mamba1.h"
#include "samba/numerics/float32.h"

namespace samba {

// In registry order (spec 30 section 1).
enum class Mamba1Weight { norm, in_proj, conv, conv_bias, x_proj, dt_proj, dt_bias, a_log, d, out_proj };
inline constexpr std::size_t kMamba1Weights = 10;
inline constexpr float kMamba1NormEpsilon = from_bits(0x3727C5ACU);  // 1e-5

// What a forward leaves in the workspace for the backward and the stages.
struct Mamba1Activations {
  Mamba1Call call;
  float* norm_sumsq = nullptr;  // [M]
  float* normed = nullptr;      // [M, d_model]
  float* conv = nullptr;        // [M, di], before SiLU; kept for the backward and the stages only
  float* dt_low = nullptr;      // [M, r]
  float* projected = nullptr;   // [M, d_model], the out_proj result
};

class Mamba1Block final : public Block {
 public:
  // d_model: at least 1; anything else is Error(value).
  explicit Mamba1Block(Executor& executor, Index d_model,
                       ConvWeightShape conv_shape = ConvWeightShape::with_group_axis);

  static std::vector<WeightSpec> make_weight_specs(Index d_model, ConvWeightShape conv_shape);

  std::string_view kind() const override { return "mamba1"; }
  Index d_model() const override { return d_model_; }
  const std::vector<WeightSpec>& weight_specs() const override { return weight_specs_; }

  void bind_weights(std::span<const WeightView> weights) override;
  void weights_changed() override;
  bool lays_out(std::size_t weight) const override { return weights_.is_product(weight); }
  const PreparedWeight* laid_out(std::size_t weight) const override;

  std::unique_ptr<BlockState> allocate_state(Index batch_size, Index max_tokens) const override;
  // Refuses the state of another block. Length is not limited.
  void check_call(const BlockState* state, Index length) const override;

  void forward(Index batch, Index length, const float* x, float* y, BlockState* state, Workspace& workspace,
               StageRecorder* stages) override;
  void step_rows(std::span<BlockState* const> states, const float* x, float* y, Workspace& workspace) override;
  void backward(Index batch, Index length, const float* x, const float* dy, float* dx,
                std::span<float* const> weight_gradients, Workspace& workspace, StageRecorder* stages) override;

 private:
  void run_call(Index batch, Index length, const float* x, float* y, std::span<BlockState* const> states,
                Workspace& workspace, StageRecorder* stages);
  void lay_out_weights();
  const float* weight(Mamba1Weight which) const { return weights_.elements(static_cast<std::size_t>(which)); }
  const float* matrix(Mamba1Weight which, Workspace& workspace) const {
    return weights_.matrix(static_cast<std::size_t>(which), workspace);
  }
  enum class Keep { nothing, for_backward, for_stages };
  // `states`: one for the whole batch (null: zeros), or with length 1 one for every row.
  Mamba1Activations run_forward(Index batch, Index length, const float* x, std::span<BlockState* const> states,
                                Keep keep, Workspace& workspace);
  void record_forward(const Mamba1Activations& run, StageRecorder& stages) const;

  Executor& executor_;
  Index d_model_;
  std::vector<WeightSpec> weight_specs_;
  BlockWeights weights_;
  std::unique_ptr<PreparedWeight> in_proj_, x_proj_, dt_proj_, out_proj_;
  DeviceArray<float> a_;  // [di, 16], made of A_log when the weights are bound
};

}  // namespace samba
