#include <nlohmann/json.hpp>

#include "samba/blocks/block_options.h"
#include "samba/blocks/mamba2/mamba2_block.h"
#include "samba/blocks/mamba_rules.h"

namespace samba {

namespace {

class Mamba2Rules final : public MambaRules<Mamba2State, Mamba2Piece, kMamba2Pieces> {
 public:
  Mamba2Rules(Executor& executor, Index d_model, const Mamba2Options& options)
      : MambaRules(executor, d_model), options_(options) {}

  std::string_view kind() const override { return "mamba2"; }
  nlohmann::json options() const override { return mamba2_options_to_json(options_); }
  std::unique_ptr<Block> make_block() const override {
    return std::make_unique<Mamba2Block>(executor_, d_model_, options_);
  }
  std::vector<WeightSpec> weight_specs() const override {
    return Mamba2Block::make_weight_specs(d_model_, options_.conv_shape);
  }

  std::vector<std::string> counters() const override { return {"buffered_tokens"}; }

  void check_counters(const std::map<std::string, Index>& counters) const override {
    const Index buffered = counters.at("buffered_tokens");
    if (buffered >= 0 && buffered < mamba2::kChunk) return;
    refuse_value("buffered_tokens must be in [0, 256), got " + std::to_string(buffered));
  }
  void set_reports(Block& block, bool wanted) const override { static_cast<Mamba2Block&>(block).set_reports(wanted); }
  ArrayMap reports(const Block& block) const override { return static_cast<const Mamba2Block&>(block).reports(); }

 private:
  Mamba2Options options_;
};

// A number, "inf" or "-inf"; rounded once.
float read_limit(const nlohmann::json& value) {
  if (value.is_number()) return static_cast<float>(value.get<double>());
  if (value.is_string() && value.get<std::string>() == "inf") return kInfinity;
  if (value.is_string() && value.get<std::string>() == "-inf") return -kInfinity;
  refuse_type("dt_limit holds " + value.dump() + R"(; its elements are numbers, "inf" or "-inf")");
}

}  // namespace

Mamba2Options parse_mamba2_options(const nlohmann::json& options) {
  Mamba2Options read;
  if (options.is_null()) return read;
  if (!options.is_object()) refuse_type("options must be a JSON object, got " + std::string(options.type_name()));
  for (auto option = options.begin(); option != options.end(); ++option) {
    if (option.key() == "numeric_mode") {
      check_numeric_mode(*option);
      continue;
    }
    if (option.key() != "dt_limit") refuse_unknown_option("mamba2", option.key());
    if (!option->is_array()) refuse_type("dt_limit must be two numbers, got " + option->dump());
    if (option->size() != 2) refuse_value("dt_limit must be two numbers, got " + option->dump());
    read.dt_low = read_limit((*option)[0]);
    read.dt_high = read_limit((*option)[1]);
  }
  return read;
}

nlohmann::json mamba2_options_to_json(const Mamba2Options& options) {
  const auto limit = [](float value) -> nlohmann::json {
    if (is_finite(value)) return static_cast<double>(value);
    return value > 0.0F ? "inf" : "-inf";
  };
  return {{"dt_limit", {limit(options.dt_low), limit(options.dt_high)}}};
}

std::shared_ptr<const BlockRules> make_mamba2_rules(Executor& executor, const nlohmann::json& options,
                                                    const ConstArrayMap& weights) {
  const std::vector<WeightSpec> names = Mamba2Block::make_weight_specs(32, ConvWeightShape::squeezed);
  check_weight_names("mamba2", names, weights);
  check_weight_dtypes(names, weights);
  const Index d_model = check_weight_vector("block_norm.weight", weights);
  if (d_model % 32 != 0) {
    refuse_value("d_model must be a multiple of 32, got " + std::to_string(d_model) + " (block_norm.weight)");
  }
  Mamba2Options read = parse_mamba2_options(options);
  read.conv_shape = conv_weight_form(weights);
  check_weight_shapes(Mamba2Block::make_weight_specs(d_model, read.conv_shape), weights);
  return std::make_shared<Mamba2Rules>(executor, d_model, read);
}

}  // namespace samba
