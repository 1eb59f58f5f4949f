#include <nlohmann/json.hpp>

#include "samba/blocks/mamba1/mamba1_block.h"
#include "samba/blocks/module_rules.h"
#include "samba/blocks/weight_checks.h"
#include "samba/core/error.h"

namespace samba {

namespace {

class Mamba1Rules final : public BlockRules {
 public:
  Mamba1Rules(Executor& executor, Index d_model, ConvWeightShape conv_shape)
      : executor_(executor), d_model_(d_model), conv_shape_(conv_shape) {}

  std::string_view kind() const override { return "mamba1"; }
  nlohmann::json options() const override { return nlohmann::json::object(); }
  std::unique_ptr<Block> make_block() const override {
    return std::make_unique<Mamba1Block>(executor_, d_model_, conv_shape_);
  }
  std::vector<WeightSpec> weight_specs() const override {
    return Mamba1Block::make_weight_specs(d_model_, conv_shape_);
  }

  std::vector<WeightSpec> pieces(Index batch_size, Index /*max_tokens*/) const override {
    std::vector<WeightSpec> specs;
    for (std::size_t i = 0; i < kMamba1Pieces; ++i) {
      const auto piece = static_cast<Mamba1Piece>(i);
      specs.push_back(
          {std::string(Mamba1State::piece_name(piece)), Mamba1State::piece_shape(piece, batch_size, d_model_)});
    }
    return specs;
  }
  std::vector<std::string> counters() const override { return {"profile_id"}; }

  void check_same_states(const BlockRules& other) const override {
    const auto* of_state = dynamic_cast<const Mamba1Rules*>(&other);
    if (of_state == nullptr) refuse_value("the state belongs to a " + std::string(other.kind()) + " block");
    if (of_state->d_model_ == d_model_) return;
    refuse_value("conv_window of the state belongs to d_model " + std::to_string(of_state->d_model_) +
                 ", that of the block is " + std::to_string(d_model_));
  }
  [[noreturn]] void refuse_batch(Index of_x, Index of_state) const override {
    const auto window = [&](Index batch) { return shape_text(pieces(batch, 0).front().shape); };
    refuse_value("conv_window has the shape " + window(of_state) + ", wanted " + window(of_x) +
                 ": x has B = " + std::to_string(of_x) + ", the state holds " + std::to_string(of_state) + " rows");
  }
  void check_counters(const std::map<std::string, Index>& counters) const override {
    refuse_other_profile(counters.at("profile_id"));
  }
  void check_finite(const BlockState& state) const override {
    const auto& typed = static_cast<const Mamba1State&>(state);
    for (std::size_t i = 0; i < kMamba1Pieces; ++i) {
      const auto piece = static_cast<Mamba1Piece>(i);
      check_piece_finite(executor_, Mamba1State::piece_name(piece), typed.piece_shape(piece), typed.data(piece));
    }
  }

  void check_differentiable(const std::string& method) const override {
    if (method == "backward") return;
    refuse_unsupported(method + " is not offered by a mamba1 block; its gradient is backward(x, grad_output)");
  }
  std::array<Operand, 3> backward_order() const override {
    return {Operand::grad_output, Operand::x, Operand::weights};
  }
  TapeCost tape_cost(Index, Index) const override { return {}; }

 private:
  Executor& executor_;
  Index d_model_;
  ConvWeightShape conv_shape_;
};

}  // namespace

std::shared_ptr<const BlockRules> make_mamba1_rules(Executor& executor, const nlohmann::json& options,
                                                    const ConstArrayMap& weights) {
  const std::vector<WeightSpec> names = Mamba1Block::make_weight_specs(1, ConvWeightShape::squeezed);
  check_weight_names("mamba1", names, weights);
  check_weight_dtypes(names, weights);
  const Index d_model = check_weight_vector("norm.weight", weights);
  const ConvWeightShape conv_shape = conv_weight_form(weights);
  check_weight_shapes(Mamba1Block::make_weight_specs(d_model, conv_shape), weights);
  check_mamba_options("mamba1", options);
  return std::make_shared<Mamba1Rules>(executor, d_model, conv_shape);
}

}  // namespace samba
