// The Mamba-2 (SSD) block of spec 31 and its gradient (spec 32 section 4) on one executor.
#pragma once

#include <array>
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "samba/blocks/block.h"
#include "samba/blocks/block_weights.h"
#include "samba/blocks/mamba2/mamba2_state.h"
#include "samba/blocks/weight_checks.h"
#include "samba/kernels/mamba2.h"
#include "samba/numerics/float32.h"

namespace samba {

// In registry order (spec 31 section 1).
enum class Mamba2Weight { block_norm, in_proj, conv, conv_bias, dt_bias, a_log, d, norm, out_proj };
inline constexpr std::size_t kMamba2Weights = 9;
inline constexpr float kMamba2NormEpsilon = from_bits(0x3727C5ACU);  // 1e-5

struct Mamba2Options {
  // dt_limit, rounded once from the numbers of the option.
  float dt_low = 0.0F;
  float dt_high = kInfinity;
  ConvWeightShape conv_shape = ConvWeightShape::with_group_axis;

  bool operator==(const Mamba2Options&) const = default;
};

// The options a user gives, dt_limit and numeric_mode (null or an object), and dt_limit as JSON; infinities are "inf"
// and "-inf".
Mamba2Options parse_mamba2_options(const nlohmann::json& options);
nlohmann::json mamba2_options_to_json(const Mamba2Options& options);

// What a forward leaves in the workspace for the backward and the stages.
struct Mamba2Activations {
  Mamba2Call call;
  float* norm_sumsq = nullptr;   // [M]
  float* normed = nullptr;       // [M, d_model]
  float* conv = nullptr;         // [M, CD], before SiLU; kept for the backward and the stages only
  float* gate_sumsq = nullptr;   // [M]
  float* gate_normed = nullptr;  // [M, di]
  float* projected = nullptr;    // [M, d_model], the out_proj result
};

class Mamba2Block final : public Block {
 public:
  // d_model: a multiple of 32, at least 32; anything else is Error(value).
  explicit Mamba2Block(Executor& executor, Index d_model, const Mamba2Options& options = {});

  static std::vector<WeightSpec> make_weight_specs(Index d_model, ConvWeightShape conv_shape);

  std::string_view kind() const override { return "mamba2"; }
  Index d_model() const override { return d_model_; }
  const std::vector<WeightSpec>& weight_specs() const override { return weight_specs_; }

  void bind_weights(std::span<const WeightView> weights) override;
  void weights_changed() override;
  bool lays_out(std::size_t weight) const override { return weights_.is_product(weight); }
  const PreparedWeight* laid_out(std::size_t weight) const override;

  std::unique_ptr<BlockState> allocate_state(Index batch_size, Index max_tokens) const override;
  // Refuses the state of another block and buffered_tokens outside [0, 256). Length is not limited.
  void check_call(const BlockState* state, Index length) const override;

  void forward(Index batch, Index length, const float* x, float* y, BlockState* state, Workspace& workspace,
               StageRecorder* stages) override;
  void step_rows(std::span<BlockState* const> states, const float* x, float* y, Workspace& workspace) override;
  void backward(Index batch, Index length, const float* x, const float* dy, float* dx,
                std::span<float* const> weight_gradients, Workspace& workspace, StageRecorder* stages) override;

  // The report of spec 31 section 3. Off until asked for: it costs one chunk product a call. When it is on every
  // forward replaces it; backward leaves it alone.
  void set_reports(bool wanted) { reports_wanted_ = wanted; }
  // h_last (B, H, 64, 128) of the last forward that made it; empty before.
  ArrayMap reports() const;

 private:
  void run_call(Index batch, Index length, const float* x, float* y, Mamba2State* state, Workspace& workspace,
                StageRecorder* stages);
  void lay_out_weights();
  const float* weight(Mamba2Weight which) const { return weights_.elements(static_cast<std::size_t>(which)); }
  const float* matrix(Mamba2Weight which, Workspace& workspace) const {
    return weights_.matrix(static_cast<std::size_t>(which), workspace);
  }
  enum class Keep { nothing, for_backward, for_stages };
  Mamba2Call make_call(Index batch, Index length) const;
  void project_in(Mamba2Activations& run, const float* x, Workspace& workspace);
  void mix(Mamba2Activations& run, Mamba2State* state, Keep keep, Workspace& workspace);
  void normalize_gate(Mamba2Activations& run, Workspace& workspace);
  void project_out(Mamba2Activations& run, const float* x, float* y, Workspace& workspace);
  Mamba2Activations run_forward(Index batch, Index length, const float* x, Mamba2State* state, float* h_last, Keep keep,
                                Workspace& workspace);
  void store_open_chunk(const Mamba2Call& call, Mamba2State& state);
  float* report_h_last(Index batch);

  Executor& executor_;
  Index d_model_;
  Mamba2Options options_;
  std::vector<WeightSpec> weight_specs_;
  BlockWeights weights_;
  std::unique_ptr<PreparedWeight> in_proj_, out_proj_;
  DeviceArray<float> a_;  // [H], made of A_log when the weights are bound

  bool reports_wanted_ = false;
  Index reported_batch_ = 0;
  DeviceArray<float> report_h_;
};

}  // namespace samba
