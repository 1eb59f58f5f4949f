#include <nlohmann/json.hpp>
#include <utility>

#include "samba/blocks/module_rules.h"
#include "samba/blocks/transformer/transformer_block.h"
#include "samba/core/error.h"

namespace samba {

namespace {

TransformerBlock& transformer(Block& block) { return static_cast<TransformerBlock&>(block); }

class TransformerRules final : public BlockRules {
 public:
  TransformerRules(Executor& executor, TransformerOptions options)
      : executor_(executor),
        options_(std::move(options)),
        rotary_(std::make_shared<RotaryTable>(executor, options_.rotary_dim(), options_.rope_theta,
                                              options_.rope_scaling)) {}

  std::string_view kind() const override { return "transformer"; }
  nlohmann::json options() const override { return transformer_options_to_json(options_); }
  std::unique_ptr<Block> make_block() const override {
    return std::make_unique<TransformerBlock>(executor_, options_, rotary_);
  }
  std::vector<WeightSpec> weight_specs() const override { return options_.weight_specs(); }

  std::vector<WeightSpec> pieces(Index batch_size, Index max_tokens) const override {
    const Index capacity = options_.window > 0 ? options_.window : max_tokens;
    const Shape shape = {batch_size * options_.key_width() * capacity};
    return {{"k_cache", shape}, {"v_cache", shape}};
  }
  std::vector<std::string> counters() const override { return {"cached_tokens"}; }

  void check_same_states(const BlockRules& other) const override {
    const auto* of_state = dynamic_cast<const TransformerRules*>(&other);
    if (of_state == nullptr) refuse_value("the state belongs to a " + std::string(other.kind()) + " block");
    const auto check = [](const char* name, Index state, Index block) {
      if (state == block) return;
      refuse_value(std::string(name) + " of the state is " + std::to_string(state) + ", that of the block is " +
                   std::to_string(block));
    };
    check("window", of_state->options_.window, options_.window);
    check("n_kv_heads", of_state->options_.n_kv_heads, options_.n_kv_heads);
    check("head_dim", of_state->options_.head_dim, options_.head_dim);
    if (of_state->options_.fixed15() != options_.fixed15()) {
      const auto profile = [](const TransformerOptions& of) { return of.fixed15() ? "fixed15_v1" : "fp32_v1"; };
      refuse_value("numeric_profile of the state is " + std::string(profile(of_state->options_)) +
                   ", that of the block is " + profile(options_));
    }
  }
  [[noreturn]] void refuse_batch(Index of_x, Index of_state) const override {
    refuse_value("the batch size of x is " + std::to_string(of_x) + ", that of the state is " +
                 std::to_string(of_state));
  }
  void check_counters(const std::map<std::string, Index>& counters) const override {
    const Index cached = counters.at("cached_tokens"), most = counters.at("max_tokens");
    if (cached >= 0 && cached <= most) return;
    refuse_value("cached_tokens must be in 0.." + std::to_string(most) + " (max_tokens), got " +
                 std::to_string(cached));
  }
  void check_finite(const BlockState& state) const override {
    static_cast<const TransformerState&>(state).check_finite(executor_.elementwise());
  }

  std::string followed_counter() const override { return "cached_tokens"; }
  bool session_has_forward() const override { return true; }

  void check_differentiable(const std::string& method, bool extended) const override {
    if (extended && !options_.fixed15()) return;
    if (const auto option = options_.first_not_default()) {
      refuse_unsupported(method + " is offered for the default block options only; option " + *option +
                         " is not the default");
    }
  }
  std::array<Operand, 3> backward_order() const override {
    return {Operand::weights, Operand::x, Operand::grad_output};
  }
  void check_backward_length(Index length) const override {
    if (length <= options_.max_positions) return;
    refuse_value("rope table of " + std::to_string(length) + " positions exceeds the model's declared max_positions " +
                 std::to_string(options_.max_positions));
  }

  // Spec 21 section 8.2: the reference's thirty forward stages.
  TapeCost tape_cost(Index batch, Index length) const override {
    const Index rows = batch * length, dm = options_.d_model, qw = options_.query_width(), kw = options_.key_width();
    const Index half = options_.head_dim / 2, heads = batch * options_.n_heads, wide = options_.intermediate;
    const Index floats = 7 * rows * dm + 2 * rows + 3 * rows * qw + 5 * rows * kw + half + 2 * length * half +
                         4 * heads * length * length + 2 * heads * length + 4 * rows * wide;
    const Index ops =
        2 * rows * (dm * (2 * qw + 2 * kw) + 3 * dm * wide) + 4 * heads * length * length * options_.head_dim;
    return {4 * floats, ops};
  }
  Index kept_floats(const Block& block, Index rows) const override {
    return static_cast<const TransformerBlock&>(block).kept_floats(rows);
  }
  void forward_keeping(Block& block, Index batch, Index length, const float* x, float* y, float* store,
                       Workspace& workspace) const override {
    transformer(block).forward_keeping(batch, length, x, y, store, workspace);
  }
  void backward_from(Block& block, Index batch, Index length, const float* x, float* store, const float* dy, float* dx,
                     std::span<float* const> weight_gradients, Workspace& workspace,
                     StageRecorder* stages) const override {
    transformer(block).backward_from(batch, length, x, store, dy, dx, weight_gradients, workspace, stages);
  }

 private:
  Executor& executor_;
  TransformerOptions options_;
  std::shared_ptr<RotaryTable> rotary_;
};

}  // namespace

std::shared_ptr<const BlockRules> make_transformer_rules(Executor& executor, const nlohmann::json& options,
                                                         const ConstArrayMap& weights) {
  return std::make_shared<TransformerRules>(executor, parse_transformer_options(options, weights));
}

}  // namespace samba
