#include <nlohmann/json.hpp>

#include "samba/blocks/mamba3/mamba3_block.h"
#include "samba/blocks/mamba_rules.h"

namespace samba {

namespace {

class Mamba3Rules final : public MambaRules<Mamba3State, Mamba3Piece, kMamba3Pieces> {
 public:
  using MambaRules::MambaRules;

  std::string_view kind() const override { return "mamba3"; }
  std::unique_ptr<Block> make_block() const override { return std::make_unique<Mamba3Block>(executor_, d_model_); }
  std::vector<WeightSpec> weight_specs() const override { return Mamba3Block::make_weight_specs(d_model_); }

  std::vector<std::string> counters() const override { return {"buffered_tokens", "pending"}; }

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
  void set_reports(Block& block, bool wanted) const override { static_cast<Mamba3Block&>(block).set_reports(wanted); }
  ArrayMap reports(const Block& block) const override { return static_cast<const Mamba3Block&>(block).reports(); }

  bool has_owned_weights() const override { return true; }

  void check_differentiable(const std::string&, bool) const override {}

 protected:
  // The input states only while they are pending.
  bool is_read(const Mamba3State& state, Mamba3Piece piece) const override {
    return state.pending() || (piece != Mamba3Piece::pending_k && piece != Mamba3Piece::pending_v);
  }
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
