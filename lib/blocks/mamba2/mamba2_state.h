// The state of a Mamba-2 block (spec 31 section 5): the last four inputs of the convolution, the state entering the
// open chunk, the rows of that chunk, and how many there are. set() stores the caller's bytes as they are, subnormals
// included.
#pragma once

#include <array>

#include "samba/blocks/block.h"
#include "samba/kernels/memory.h"

namespace samba {

// In the order of checks.
enum class Mamba2Piece {
  conv_window,   // (batch, CD, 4), oldest first, as in_proj produced them
  h,             // (batch, H, 64, 128)
  buffer_xbc,    // (batch, 256, CD), after convolution and SiLU
  buffer_dtraw,  // (batch, 256, H), as in_proj produced them
};
inline constexpr std::size_t kMamba2Pieces = 4;

class Mamba2State final : public BlockState {
 public:
  Mamba2State(Memory& memory, Index d_model, Index batch_size);  // the empty sequence

  Index batch_size() const override { return batch_size_; }
  Index d_model() const { return d_model_; }
  void reset() override;
  std::unique_ptr<BlockState> clone() const override;

  ArrayMap pieces() const override;
  std::map<std::string, Index> counters() const override;  // buffered_tokens
  // The counter is stored as given; a call refuses one it cannot continue from (Mamba2Block::check_call).
  void set(const ConstArrayMap& pieces, const std::map<std::string, Index>& counters) override;

  static std::string_view piece_name(Mamba2Piece piece);
  static Shape piece_shape(Mamba2Piece piece, Index batch_size, Index d_model);
  Shape piece_shape(Mamba2Piece piece) const { return piece_shape(piece, batch_size_, d_model_); }
  float* data(Mamba2Piece piece) { return arrays_[static_cast<std::size_t>(piece)].data(); }
  const float* data(Mamba2Piece piece) const { return arrays_[static_cast<std::size_t>(piece)].data(); }

  Index buffered_tokens() const { return buffered_tokens_; }
  void set_buffered_tokens(Index count) { buffered_tokens_ = count; }

 private:
  Memory& memory_;
  Index d_model_;
  Index batch_size_;
  std::array<DeviceArray<float>, kMamba2Pieces> arrays_;
  Index buffered_tokens_ = 0;
};

}  // namespace samba
