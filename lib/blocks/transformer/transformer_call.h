// The arguments of one call of a transformer block, between its source files.
#pragma once

#include <initializer_list>

#include "samba/blocks/transformer/transformer_block.h"

namespace samba {

struct TransformerBlock::Call {
  Index batch = 0;
  Index length = 0;
  const float* x = nullptr;
  TransformerState* state = nullptr;  // null: a fresh call
  TransformerActivations a;
  Workspace& workspace;
  StageRecorder* stages = nullptr;
  // A step of several sequences: the state of each row, whose length is 1; `state` is null.
  std::span<BlockState* const> row_states = {};

  Index rows() const { return batch * length; }
  Index first_position() const { return state == nullptr ? 0 : state->cached_tokens(); }
  TransformerState* row_state(Index row) const {
    return static_cast<TransformerState*>(row_states[static_cast<std::size_t>(row)]);
  }
  // A call without stages makes no Shape: it allocates nothing.
  void record(std::string_view name, std::initializer_list<Index> shape, const float* values) const {
    if (stages != nullptr) stages->record(name, Shape(shape), values);
  }
};

struct TransformerBlock::Gradient {
  Index batch = 0;
  Index length = 0;
  const float* x = nullptr;
  TransformerActivations a;
  const float* dy = nullptr;
  float* dx = nullptr;
  std::span<float* const> weight_gradients;
  const TransformerOptions& options;
  Workspace& workspace;
  StageRecorder* stages = nullptr;

  Index rows() const { return batch * length; }
  // The gradients lie in registry order, those of the weights that the options ask for.
  float* of(TransformerWeight which) const {
    std::size_t index = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(which); ++i) {
      if (options.has(static_cast<TransformerWeight>(i))) ++index;
    }
    return weight_gradients[index];
  }
  void record(std::string_view name, std::initializer_list<Index> shape, const float* values) const {
    if (stages != nullptr) stages->record(name, Shape(shape), values);
  }
};

}  // namespace samba
