// What the rules of the Mamba kinds share: their states are fixed arrays whose sizes follow from d_model.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "samba/blocks/module_rules.h"
#include "samba/blocks/refusals.h"
#include "samba/blocks/weight_checks.h"
#include "samba/core/error.h"

namespace samba {

// State: its pieces are the values 0 .. kPieces - 1 of Piece, in the order of their checks.
template <class State, class Piece, std::size_t kPieces>
class MambaRules : public BlockRules {
 public:
  MambaRules(Executor& executor, Index d_model) : executor_(executor), d_model_(d_model) {}

  std::vector<WeightSpec> pieces(Index batch_size, Index /*max_tokens*/) const override {
    std::vector<WeightSpec> specs;
    for (std::size_t i = 0; i < kPieces; ++i) {
      const auto piece = static_cast<Piece>(i);
      specs.push_back({std::string(State::piece_name(piece)), State::piece_shape(piece, batch_size, d_model_)});
    }
    return specs;
  }

  void check_same_states(const BlockRules& other) const override {
    const auto* of_state = dynamic_cast<const MambaRules*>(&other);
    if (of_state == nullptr) refuse_value("the state belongs to a " + std::string(other.kind()) + " block");
    if (of_state->d_model_ == d_model_) return;
    refuse_value(first_piece() + " of the state belongs to d_model " + std::to_string(of_state->d_model_) +
                 ", that of the block is " + std::to_string(d_model_));
  }
  [[noreturn]] void refuse_batch(Index of_x, Index of_state) const override {
    const auto shape = [&](Index batch) { return shape_text(pieces(batch, 0).front().shape); };
    refuse_value(first_piece() + " has the shape " + shape(of_state) + ", wanted " + shape(of_x) +
                 ": x has B = " + std::to_string(of_x) + ", the state holds " + std::to_string(of_state) + " rows");
  }
  // Whole pieces: all rows of the buffers, however many are in use.
  void check_finite(const BlockState& state) const override {
    const auto& typed = static_cast<const State&>(state);
    for (std::size_t i = 0; i < kPieces; ++i) {
      const auto piece = static_cast<Piece>(i);
      if (!is_read(typed, piece)) continue;
      check_piece_finite(executor_, State::piece_name(piece), typed.piece_shape(piece), typed.data(piece));
    }
  }

  nlohmann::json options() const override { return nlohmann::json::object(); }

  // backward alone; a kind that has a tape says so.
  void check_differentiable(const std::string& method, bool /*extended*/) const override {
    if (method == "backward") return;
    refuse_unsupported(method + " is not offered by a " + std::string(kind()) +
                       " block; its gradient is backward(x, grad_output)");
  }
  std::array<Operand, 3> backward_order() const override {
    return {Operand::grad_output, Operand::x, Operand::weights};
  }
  TapeCost tape_cost(Index, Index) const override { return {}; }

 protected:
  // Whether a call reads the piece.
  virtual bool is_read(const State&, Piece) const { return true; }
  std::string first_piece() const { return std::string(State::piece_name(static_cast<Piece>(0))); }

  Executor& executor_;
  Index d_model_;
};

}  // namespace samba
