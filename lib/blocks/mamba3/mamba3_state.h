// The state of a Mamba-3 block (spec 40 section 6): ten arrays in device memory and two counters.
//
// The arrays are the caller's bytes: what a call does not compute keeps them (spec 40 section 6.1), and set() stores
// them as they are, subnormals included.
#pragma once

#include <array>
#include <utility>

#include "samba/blocks/block.h"
#include "samba/kernels/mamba3.h"
#include "samba/kernels/memory.h"

namespace samba {

// In the order of spec 40 section 6, which is the order of checks.
enum class Mamba3Piece {
  theta,        // (batch, H, 32)
  h,            // (batch, H, 64, 128)
  buffer_qrot,  // (batch, 64, H, 128)
  buffer_krot,  // (batch, 64, H, 128)
  buffer_v,     // (batch, 64, H, 64)
  buffer_dt,    // (batch, 64, H)
  buffer_sig,   // (batch, 64, H)
  buffer_adt,   // (batch, 64, H)
  pending_k,    // (batch, H, 128)
  pending_v,    // (batch, H, 64)
};
inline constexpr std::size_t kMamba3Pieces = 10;

class Mamba3State final : public BlockState {
 public:
  // The empty sequence. head_start_size: Mamba3Kernels::head_start_size().
  Mamba3State(Memory& memory, Index d_model, Index batch_size, Index head_start_size = 0);

  Index batch_size() const override { return batch_size_; }
  Index d_model() const { return d_model_; }
  void reset() override;
  std::unique_ptr<BlockState> clone() const override;

  ArrayMap pieces() const override;
  std::map<std::string, Index> counters() const override;  // buffered_tokens, pending (0 or 1)
  // Counters are stored as given; a call refuses those it cannot continue from (Mamba3Block::check_call).
  void set(const ConstArrayMap& pieces, const std::map<std::string, Index>& counters) override;

  // Spec 40 section 6.2: theta (batch, H, 32), h (batch, H, 64, 128), k (batch, H, 128), v (batch, H, 64); sets
  // pending. Error(type) for a dtype, Error(value) for a shape; then nothing has changed.
  void set_input_states(ConstArray theta, ConstArray h, ConstArray k, ConstArray v);

  // Single pieces, in device memory.
  static std::string_view piece_name(Mamba3Piece piece);
  static Shape piece_shape(Mamba3Piece piece, Index batch_size, Index d_model);
  Shape piece_shape(Mamba3Piece piece) const { return piece_shape(piece, batch_size_, d_model_); }
  float* data(Mamba3Piece piece) {
    head_start_known_ = false;  // what is written now is not what it was made of
    return arrays_[static_cast<std::size_t>(piece)].data();
  }
  const float* data(Mamba3Piece piece) const { return arrays_[static_cast<std::size_t>(piece)].data(); }

  Index buffered_tokens() const { return buffered_tokens_; }
  bool pending() const { return pending_; }

  // Scratch memory from one call to the next, no piece of the state: it is neither copied nor saved.
  float* head_start() { return head_start_.data(); }
  // Whether the last call left it and nothing has touched the state since. It counts once: asking takes it.
  bool take_head_start() { return std::exchange(head_start_known_, false); }

  // What a call ends with: `keep` rows are buffered, input states are used up (pending_k and pending_v become +0.0).
  void finish_call(Index keep, bool head_start_known);
  Mamba3Rows buffer();

 private:
  Memory& memory_;
  Index d_model_;
  Index batch_size_;
  Index head_start_size_;
  std::array<DeviceArray<float>, kMamba3Pieces> arrays_;
  Index buffered_tokens_ = 0;
  bool pending_ = false;
  DeviceArray<float> head_start_;  // (batch, H, head_start_size_)
  bool head_start_known_ = false;
};

}  // namespace samba
