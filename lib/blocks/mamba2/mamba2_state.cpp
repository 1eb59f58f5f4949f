#include "samba/blocks/mamba2/mamba2_state.h"

#include <string>

#include "samba/blocks/refusals.h"
#include "samba/core/error.h"
#include "samba/kernels/conv.h"
#include "samba/kernels/mamba2.h"

namespace samba {

namespace {

constexpr std::array<std::string_view, kMamba2Pieces> kNames = {"conv_window", "h", "buffer_xbc", "buffer_dtraw"};

std::size_t piece_index(std::string_view name) {
  for (std::size_t i = 0; i < kMamba2Pieces; ++i) {
    if (kNames[i] == name) return i;
  }
  refuse_value("unknown state piece " + std::string(name) +
               "; the pieces are conv_window, h, buffer_xbc, buffer_dtraw");
}

}  // namespace

Mamba2State::Mamba2State(Memory& memory, Index d_model, Index batch_size)
    : memory_(memory), d_model_(d_model), batch_size_(batch_size) {
  for (std::size_t i = 0; i < kMamba2Pieces; ++i) {
    arrays_[i] = DeviceArray<float>(memory, element_count(piece_shape(static_cast<Mamba2Piece>(i))));
  }
  reset();
}

std::string_view Mamba2State::piece_name(Mamba2Piece piece) { return kNames[static_cast<std::size_t>(piece)]; }

Shape Mamba2State::piece_shape(Mamba2Piece piece, Index batch_size, Index d_model) {
  switch (piece) {
    case Mamba2Piece::conv_window:
      return {batch_size, mamba2::conv_channels(d_model), kConvTaps};
    case Mamba2Piece::h:
      return {batch_size, mamba2::heads(d_model), mamba2::kHeadDim, mamba2::kStateSize};
    case Mamba2Piece::buffer_xbc:
      return {batch_size, mamba2::kChunk, mamba2::conv_channels(d_model)};
    case Mamba2Piece::buffer_dtraw:
      return {batch_size, mamba2::kChunk, mamba2::heads(d_model)};
  }
  throw Error(ErrorKind::internal, "no such Mamba-2 state piece");
}

void Mamba2State::reset() {
  for (DeviceArray<float>& array : arrays_) array.zero();
  buffered_tokens_ = 0;
}

std::unique_ptr<BlockState> Mamba2State::clone() const {
  auto copy = std::make_unique<Mamba2State>(memory_, d_model_, batch_size_);
  for (std::size_t i = 0; i < kMamba2Pieces; ++i) {
    memory_.copy(copy->arrays_[i].data(), arrays_[i].data(), arrays_[i].byte_size());
  }
  copy->buffered_tokens_ = buffered_tokens_;
  return copy;
}

ArrayMap Mamba2State::pieces() const {
  ArrayMap result;
  for (std::size_t i = 0; i < kMamba2Pieces; ++i) {
    Array array = Array::zeros(piece_shape(static_cast<Mamba2Piece>(i)));
    arrays_[i].download(array.floats().data());
    result.emplace(kNames[i], std::move(array));
  }
  return result;
}

std::map<std::string, Index> Mamba2State::counters() const { return {{"buffered_tokens", buffered_tokens_}}; }

void Mamba2State::set(const ConstArrayMap& pieces, const std::map<std::string, Index>& counters) {
  for (const auto& [name, array] : pieces) {
    refuse_other_array(name, array, piece_shape(static_cast<Mamba2Piece>(piece_index(name))));
  }
  for (const auto& [name, value] : counters) {
    if (name != "buffered_tokens") {
      refuse_value("unknown state counter " + name + "; the counter is buffered_tokens");
    }
  }
  for (const auto& [name, array] : pieces) arrays_[piece_index(name)].upload(array.floats());
  if (const auto found = counters.find("buffered_tokens"); found != counters.end()) buffered_tokens_ = found->second;
}

}  // namespace samba
