#include <nlohmann/json.hpp>

#include "samba/blocks/mamba3/mamba3_block.h"
#include "samba/blocks/module_rules.h"
#include "samba/blocks/weight_checks.h"
#include "samba/core/error.h"

namespace samba {

namespace {

class Mamba3Rules final : public BlockRules {
 public:
  Mamba3Rules(Executor& executor, Index d_model) : executor_(executor), d_model_(d_model) {}

  std::string_view kind() const override { return "mamba3"; }
  nlohmann::json options() const override { return nlohmann::json::object(); }
  std::unique_ptr<Block> make_block() const override { return std::make_unique<Mamba3Block>(executor_, d_model_); }
  std::vector<WeightSpec> weight_specs() const override { return Mamba3Block::make_weight_specs(d_model_); }

  std::vector<WeightSpec> pieces(Index batch_size, Index /*max_tokens*/) const override {
    std::vector<WeightSpec> specs;
    for (std::size_t i = 0; i < kMamba3Pieces; ++i) {
      const auto piece = static_cast<Mamba3Piece>(i);
      specs.push_back(
          {std::string(Mamba3State::piece_name(piece)), Mamba3State::piece_shape(piece, batch_size, d_model_)});
    }
    return specs;
  }
  std::vector<std::string> counters() const override { return {"buffered_tokens", "pending"}; }

  void check_same_states(const BlockRules& other) const override {
    const auto* of_state = dynamic_cast<const Mamba3Rules*>(&other);
    if (of_state == nullptr) refuse_value("the state belongs to a " + std::string(other.kind()) + " block");
    if (of_state->d_model_ == d_model_) return;
    refuse_value("theta of the state belongs to d_model " + std::to_string(of_state->d_model_) +
                 ", that of the block is " + std::to_string(d_model_));
  }
  [[noreturn]] void refuse_batch(Index of_x, Index of_state) const override {
    const auto theta = [&](Index batch) { return shape_text(pieces(batch, 0).front().shape); };
    refuse_value("theta has the shape " + theta(of_state) + ", wanted " + theta(of_x) + ": the batch size of x is " +
                 std::to_string(of_x) + ", that of the state is " + std::to_string(of_state));
  }
  void check_counters(const std::map<std::string, Index>& counters) const override {
    const Index buffered = counters.at("buffered_tokens");
    if (buffered < 0 || buffered > mamba3::kChunk) {
      refuse_value("buffered_tokens must be in 0..64, got " + std::to_string(buffered));
    }
    if (counters.at("pending") != 0 && buffered != 0) {
      refuse_value("set_input_states in mid-sequence: input states are pending, but buffered_tokens is " +
                   std::to_string(buffered) + ", wanted 0");
    }
  }
  // All 64 rows of the buffers, however many are in use; the pending pieces only while they are pending.
  void check_finite(const BlockState& state) const override {
    const auto& typed = static_cast<const Mamba3State&>(state);
    for (std::size_t i = 0; i < kMamba3Pieces; ++i) {
      const auto piece = static_cast<Mamba3Piece>(i);
      const bool input_state = piece == Mamba3Piece::pending_k || piece == Mamba3Piece::pending_v;
      if (input_state && !typed.pending()) continue;
      check_piece_finite(executor_, Mamba3State::piece_name(piece), typed.piece_shape(piece), typed.data(piece));
    }
  }

  void set_reports(Block& block, bool wanted) const override { static_cast<Mamba3Block&>(block).set_reports(wanted); }
  ArrayMap reports(const Block& block) const override { return static_cast<const Mamba3Block&>(block).reports(); }

  bool has_owned_weights() const override { return true; }

  void check_differentiable(const std::string&) const override {}
  std::array<Operand, 3> backward_order() const override {
    return {Operand::grad_output, Operand::x, Operand::weights};
  }
  TapeCost tape_cost(Index, Index) const override { return {}; }

 private:
  Executor& executor_;
  Index d_model_;
};

}  // namespace

std::shared_ptr<const BlockRules> make_mamba3_rules(Executor& executor, const nlohmann::json& options,
                                                    const ConstArrayMap& weights) {
  const std::vector<WeightSpec> names = Mamba3Block::make_weight_specs(32);
  check_weight_names("mamba3", names, weights);
  check_weight_dtypes(names, weights);
  const Index d_model = check_weight_vector("block_norm.weight", weights);
  if (d_model % 32 != 0) {
    refuse_value("d_model must be a multiple of 32, got " + std::to_string(d_model) + " (block_norm.weight)");
  }
  check_weight_shapes(Mamba3Block::make_weight_specs(d_model), weights);
  check_mamba_options("mamba3", options);
  return std::make_shared<Mamba3Rules>(executor, d_model);
}

}  // namespace samba
