#include <nlohmann/json.hpp>

#include "samba/blocks/mamba1/mamba1_block.h"
#include "samba/blocks/mamba_rules.h"

namespace samba {

namespace {

class Mamba1Rules final : public MambaRules<Mamba1State, Mamba1Piece, kMamba1Pieces> {
 public:
  Mamba1Rules(Executor& executor, Index d_model, ConvWeightShape conv_shape)
      : MambaRules(executor, d_model), conv_shape_(conv_shape) {}

  std::string_view kind() const override { return "mamba1"; }
  std::unique_ptr<Block> make_block() const override {
    return std::make_unique<Mamba1Block>(executor_, d_model_, conv_shape_);
  }
  std::vector<WeightSpec> weight_specs() const override {
    return Mamba1Block::make_weight_specs(d_model_, conv_shape_);
  }

  std::vector<std::string> counters() const override { return {"profile_id"}; }

  void check_counters(const std::map<std::string, Index>& counters) const override {
    refuse_other_profile(counters.at("profile_id"));
  }

 private:
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
