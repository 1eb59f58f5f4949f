#include <algorithm>
#include <nlohmann/json.hpp>

#include "samba/blocks/mamba1/mamba1_block.h"
#include "samba/blocks/module_rules.h"
#include "samba/blocks/refusals.h"
#include "samba/core/error.h"

namespace samba {

namespace {

void append(std::string& list, const std::string& name) { list += (list.empty() ? "" : ", ") + name; }

std::string or_none(const std::string& list) { return list.empty() ? "none" : list; }

class Mamba1Rules final : public BlockRules {
 public:
  Mamba1Rules(Executor& executor, Index d_model, ConvWeightShape conv_shape)
      : executor_(executor), d_model_(d_model), conv_shape_(conv_shape) {}

  std::string_view kind() const override { return "mamba1"; }
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
      const Index found =
          executor_.elementwise().first_non_finite(element_count(typed.piece_shape(piece)), typed.data(piece));
      if (found < 0) continue;
      float value = 0.0F;
      executor_.memory().copy_to_host(&value, typed.data(piece) + found, sizeof value);
      refuse_non_finite(std::string(Mamba1State::piece_name(piece)), value, found);
    }
  }

  std::string session_name() const override { return "Mamba1DecodeSession"; }

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

void check_names(const std::vector<WeightSpec>& specs, const ConstArrayMap& weights) {
  std::string wanted, missing, unknown;
  for (const WeightSpec& spec : specs) {
    append(wanted, spec.name);
    if (weights.count(spec.name) == 0) append(missing, spec.name);
  }
  for (const auto& [name, array] : weights) {
    const bool known =
        std::any_of(specs.begin(), specs.end(), [&](const WeightSpec& spec) { return spec.name == name; });
    if (!known) append(unknown, name);
  }
  if (missing.empty() && unknown.empty()) return;
  refuse_value("the weights of a mamba1 block are exactly " + wanted + "; missing: " + or_none(missing) +
               "; unknown: " + or_none(unknown));
}

// Shapes in table order; conv1d.weight has two spellings.
void check_shapes(const std::vector<WeightSpec>& specs, const ConstArrayMap& weights) {
  for (const WeightSpec& spec : specs) {
    const Shape& shape = weights.at(spec.name).shape;
    if (shape == spec.shape) continue;
    std::string wanted = shape_text(spec.shape);
    if (spec.name == "conv1d.weight") {
      const Index channels = spec.shape.front();
      wanted = shape_text({channels, 1, kConvTaps}) + " or " + shape_text({channels, kConvTaps});
    }
    refuse_value("weight " + spec.name + " has the shape " + shape_text(shape) + ", wanted " + wanted);
  }
}

void check_options(const nlohmann::json& options) {
  if (options.is_null()) return;
  if (!options.is_object()) refuse_type("options must be a JSON object, got " + std::string(options.type_name()));
  for (auto option = options.begin(); option != options.end(); ++option) {
    if (option.key() != "numeric_mode") {
      refuse_type("a mamba1 block has no option '" + option.key() + "'; it has numeric_mode");
    }
    if (!option->is_string() || option->get<std::string>() != "identical") {
      refuse_unsupported("numeric_mode " + option->dump() + " is not offered; accepted: identical");
    }
  }
}

}  // namespace

std::shared_ptr<const BlockRules> make_mamba1_rules(Executor& executor, const nlohmann::json& options,
                                                    const ConstArrayMap& weights) {
  const std::vector<WeightSpec> names = Mamba1Block::make_weight_specs(1, ConvWeightShape::squeezed);
  check_names(names, weights);
  for (const WeightSpec& spec : names) refuse_other_dtype("weight " + spec.name, weights.at(spec.name));
  const Shape& norm = weights.at("norm.weight").shape;
  if (norm.size() != 1 || norm[0] < 1) {
    refuse_value("weight norm.weight must be one-dimensional (d_model,) and not empty, got the shape " +
                 shape_text(norm));
  }
  const auto conv_shape =
      weights.at("conv1d.weight").shape.size() == 2 ? ConvWeightShape::squeezed : ConvWeightShape::with_group_axis;
  check_shapes(Mamba1Block::make_weight_specs(norm[0], conv_shape), weights);
  check_options(options);
  return std::make_shared<Mamba1Rules>(executor, norm[0], conv_shape);
}

}  // namespace samba
