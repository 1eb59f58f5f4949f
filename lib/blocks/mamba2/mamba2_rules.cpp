#include <nlohmann/json.hpp>

#include "samba/blocks/block_options.h"
#include "samba/blocks/mamba2/mamba2_block.h"
#include "samba/blocks/module_rules.h"
#include "samba/blocks/weight_checks.h"
#include "samba/core/error.h"

namespace samba {

namespace {

class Mamba2Rules final : public BlockRules {
 public:
  Mamba2Rules(Executor& executor, Index d_model, const Mamba2Options& options)
      : executor_(executor), d_model_(d_model), options_(options) {}

  std::string_view kind() const override { return "mamba2"; }
  nlohmann::json options() const override { return mamba2_options_to_json(options_); }
  std::unique_ptr<Block> make_block() const override {
    return std::make_unique<Mamba2Block>(executor_, d_model_, options_);
  }
  std::vector<WeightSpec> weight_specs() const override {
    return Mamba2Block::make_weight_specs(d_model_, options_.conv_shape);
  }

  std::vector<WeightSpec> pieces(Index batch_size, Index /*max_tokens*/) const override {
    std::vector<WeightSpec> specs;
    for (std::size_t i = 0; i < kMamba2Pieces; ++i) {
      const auto piece = static_cast<Mamba2Piece>(i);
      specs.push_back(
          {std::string(Mamba2State::piece_name(piece)), Mamba2State::piece_shape(piece, batch_size, d_model_)});
    }
    return specs;
  }
  std::vector<std::string> counters() const override { return {"buffered_tokens"}; }

  void check_same_states(const BlockRules& other) const override {
    const auto* of_state = dynamic_cast<const Mamba2Rules*>(&other);
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
    const Index buffered = counters.at("buffered_tokens");
    if (buffered >= 0 && buffered < mamba2::kChunk) return;
    refuse_value("buffered_tokens must be in [0, 256), got " + std::to_string(buffered));
  }
  // All 256 rows of the buffers, however many are in use.
  void check_finite(const BlockState& state) const override {
    const auto& typed = static_cast<const Mamba2State&>(state);
    for (std::size_t i = 0; i < kMamba2Pieces; ++i) {
      const auto piece = static_cast<Mamba2Piece>(i);
      check_piece_finite(executor_, Mamba2State::piece_name(piece), typed.piece_shape(piece), typed.data(piece));
    }
  }

  void set_reports(Block& block, bool wanted) const override { static_cast<Mamba2Block&>(block).set_reports(wanted); }
  ArrayMap reports(const Block& block) const override { return static_cast<const Mamba2Block&>(block).reports(); }

  void check_differentiable(const std::string& method) const override {
    if (method == "backward") return;
    refuse_unsupported(method + " is not offered by a mamba2 block; its gradient is backward(x, grad_output)");
  }
  std::array<Operand, 3> backward_order() const override {
    return {Operand::grad_output, Operand::x, Operand::weights};
  }
  TapeCost tape_cost(Index, Index) const override { return {}; }

 private:
  Executor& executor_;
  Index d_model_;
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
