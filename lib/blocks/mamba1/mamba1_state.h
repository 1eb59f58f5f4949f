// The state of a Mamba-1 block (spec 30 section 4): the last four inputs of the convolution and the scan's h, in device
// memory. set() stores the caller's bytes as they are, subnormals included. Its numerical profile is 1, under which the
// position is not counted: both counters are constants.
#pragma once

#include <array>

#include "samba/blocks/block.h"
#include "samba/kernels/memory.h"

namespace samba {

// In the order of checks.
enum class Mamba1Piece {
  conv_window,  // (batch, di, 4), oldest first, as in_proj produced them
  h,            // (batch, di, 16)
};
inline constexpr std::size_t kMamba1Pieces = 2;
inline constexpr Index kMamba1Profile = 1;

// Error(value) for a state of another numerical profile.
void refuse_other_profile(Index profile_id);

class Mamba1State final : public BlockState {
 public:
  Mamba1State(Memory& memory, Index d_model, Index batch_size);  // the empty sequence

  Index batch_size() const override { return batch_size_; }
  Index d_model() const { return d_model_; }
  void reset() override;
  std::unique_ptr<BlockState> clone() const override;

  ArrayMap pieces() const override;
  std::map<std::string, Index> counters() const override {
    return {{"absolute_position", 0}, {"profile_id", kMamba1Profile}};
  }
  void set(const ConstArrayMap& pieces, const std::map<std::string, Index>& counters) override;

  static std::string_view piece_name(Mamba1Piece piece);
  static Shape piece_shape(Mamba1Piece piece, Index batch_size, Index d_model);
  Shape piece_shape(Mamba1Piece piece) const { return piece_shape(piece, batch_size_, d_model_); }
  float* data(Mamba1Piece piece) { return arrays_[static_cast<std::size_t>(piece)].data(); }
  const float* data(Mamba1Piece piece) const { return arrays_[static_cast<std::size_t>(piece)].data(); }

 private:
  Memory& memory_;
  Index d_model_;
  Index batch_size_;
  std::array<DeviceArray<float>, kMamba1Pieces> arrays_;
};

}  // namespace samba
