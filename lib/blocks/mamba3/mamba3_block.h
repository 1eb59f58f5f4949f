// The Mamba-3 (SISO) block of spec 40 and 41 on one executor.
#pragma once

#include <array>
#include <memory>

#include "samba/blocks/block.h"
#include "samba/blocks/block_weights.h"
#include "samba/blocks/mamba3/mamba3_state.h"
#include "samba/kernels/mamba3.h"
#include "samba/numerics/float32.h"

namespace samba {

// In registry order (spec 40 section 1).
enum class Mamba3Weight { block_norm, in_proj, dt_bias, b_norm, c_norm, b_bias, c_bias, d, out_proj };
inline constexpr std::size_t kMamba3Weights = 9;
inline constexpr float kMamba3NormEpsilon = from_bits(0x3727C5ACU);  // 1e-5

// What a forward leaves in the workspace for the backward and the stages.
struct Mamba3Activations {
  Mamba3Call call;
  float* norm_sumsq = nullptr;  // [M]
  float* normed = nullptr;      // [M, d_model]
  float* in_proj = nullptr;     // [M, projection_width]
  float* projected = nullptr;   // [M, d_model], the out_proj result
};

class Mamba3Block final : public Block {
 public:
  // The gradient's arithmetic: spec 41, or samba.fp32.v2 (docs/spec-extensions.md section 2).
  enum class Gradient { chains, matrix_products };
  // d_model: a multiple of 32, at least 32; anything else is Error(value).
  Mamba3Block(Executor& executor, Index d_model, Gradient gradient = Gradient::chains);

  static std::vector<WeightSpec> make_weight_specs(Index d_model);

  std::string_view kind() const override { return "mamba3"; }
  Index d_model() const override { return d_model_; }
  const std::vector<WeightSpec>& weight_specs() const override { return weight_specs_; }

  void bind_weights(std::span<const WeightView> weights) override;
  void weights_changed() override;
  bool lays_out(std::size_t weight) const override { return weights_.is_product(weight); }
  const PreparedWeight* laid_out(std::size_t weight) const override;

  std::unique_ptr<BlockState> allocate_state(Index batch_size, Index max_tokens) const override;
  // Refuses buffered_tokens outside 0..64 and input states set in mid-sequence. Length is not limited.
  void check_call(const BlockState* state, Index length) const override;

  void forward(Index batch, Index length, const float* x, float* y, BlockState* state, Workspace& workspace,
               StageRecorder* stages) override;
  void step_rows(std::span<BlockState* const> states, const float* x, float* y, Workspace& workspace) override;
  void backward(Index batch, Index length, const float* x, const float* dy, float* dx,
                std::span<float* const> weight_gradients, Workspace& workspace, StageRecorder* stages) override;

  // The reports of spec 40 section 6.3. Off until asked for: h_last costs one chunk product a call. When they are on
  // every forward replaces them; backward leaves them alone.
  void set_reports(bool wanted) { reports_wanted_ = wanted; }
  // h_last (B, H, 64, 128), k_last (B, H, 128), v_last (B, H, 64), theta_last (B, H, 32) of the last forward that made
  // them; empty before.
  ArrayMap reports() const;

 private:
  void run_call(Index batch, Index length, const float* x, float* y, Mamba3State* state, Workspace& workspace,
                StageRecorder* stages);
  void lay_out_weights();
  const float* weight(Mamba3Weight which) const { return weights_.elements(static_cast<std::size_t>(which)); }
  const float* matrix(Mamba3Weight which, Workspace& workspace) const {
    return weights_.matrix(static_cast<std::size_t>(which), workspace);
  }
  enum class Keep { nothing, for_backward, for_stages };
  Mamba3Call make_call(Index batch, Index length) const;
  void project_in(Mamba3Activations& run, const float* x, Workspace& workspace);
  void mix(Mamba3Call& call, float* in_proj, Mamba3State* state, Keep keep, Workspace& workspace);
  void project_out(Mamba3Activations& run, const float* x, float* y, Workspace& workspace);
  Mamba3Activations run_forward(Index batch, Index length, const float* x, Mamba3State* state, float* h_last, Keep keep,
                                Workspace& workspace);
  void store_last_chunk(const Mamba3Call& call, Mamba3State& state);
  void store_reports(const Mamba3Call& call);
  float* report_h_last(Index batch);

  Executor& executor_;
  Index d_model_;
  Gradient gradient_;
  std::vector<WeightSpec> weight_specs_;
  BlockWeights weights_;
  std::unique_ptr<PreparedWeight> in_proj_;
  std::unique_ptr<PreparedWeight> out_proj_;

  bool reports_wanted_ = false;
  Index reported_batch_ = 0;
  DeviceArray<float> report_h_, report_k_, report_v_, report_theta_;
};

}  // namespace samba
