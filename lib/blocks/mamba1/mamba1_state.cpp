#include "samba/blocks/mamba1/mamba1_state.h"

#include <string>

#include "samba/blocks/refusals.h"
#include "samba/core/error.h"
#include "samba/kernels/conv.h"
#include "samba/kernels/mamba1.h"

namespace samba {

namespace {

constexpr std::array<Mamba1Piece, kMamba1Pieces> kPieces = {Mamba1Piece::conv_window, Mamba1Piece::h};

Mamba1Piece piece_named(std::string_view name) {
  for (const Mamba1Piece piece : kPieces) {
    if (Mamba1State::piece_name(piece) == name) return piece;
  }
  refuse_value("unknown state piece " + std::string(name) + "; the pieces are conv_window, h");
}

}  // namespace

void refuse_other_profile(Index profile_id) {
  if (profile_id == kMamba1Profile) return;
  refuse_value("profile_id is " + std::to_string(profile_id) +
               ": the numerical profile of the state differs from the block's, which is 1");
}

Mamba1State::Mamba1State(Memory& memory, Index d_model, Index batch_size)
    : memory_(memory), d_model_(d_model), batch_size_(batch_size) {
  for (const Mamba1Piece piece : kPieces) {
    arrays_[static_cast<std::size_t>(piece)] = DeviceArray<float>(memory, element_count(piece_shape(piece)));
  }
  reset();
}

std::string_view Mamba1State::piece_name(Mamba1Piece piece) {
  return piece == Mamba1Piece::conv_window ? "conv_window" : "h";
}

Shape Mamba1State::piece_shape(Mamba1Piece piece, Index batch_size, Index d_model) {
  const Index last = piece == Mamba1Piece::conv_window ? kConvTaps : mamba1::kStates;
  return {batch_size, mamba1::d_inner(d_model), last};
}

void Mamba1State::reset() {
  for (DeviceArray<float>& array : arrays_) array.zero();
}

std::unique_ptr<BlockState> Mamba1State::clone() const {
  auto copy = std::make_unique<Mamba1State>(memory_, d_model_, batch_size_);
  for (std::size_t i = 0; i < kMamba1Pieces; ++i) {
    memory_.copy(copy->arrays_[i].data(), arrays_[i].data(), arrays_[i].byte_size());
  }
  return copy;
}

ArrayMap Mamba1State::pieces() const {
  ArrayMap result;
  for (const Mamba1Piece piece : kPieces) {
    Array array = Array::zeros(piece_shape(piece));
    arrays_[static_cast<std::size_t>(piece)].download(array.floats().data());
    result.emplace(piece_name(piece), std::move(array));
  }
  return result;
}

void Mamba1State::set(const ConstArrayMap& pieces, const std::map<std::string, Index>& counters) {
  for (const auto& [name, array] : pieces) refuse_other_array(name, array, piece_shape(piece_named(name)));
  for (const auto& [name, value] : counters) {
    if (name == "profile_id") {
      refuse_other_profile(value);
    } else if (name != "absolute_position" || value != 0) {
      refuse_value("the state of a mamba1 block has no counter " + name + " = " + std::to_string(value) +
                   "; it has profile_id = 1, absolute_position = 0");
    }
  }
  for (const auto& [name, array] : pieces) {
    arrays_[static_cast<std::size_t>(piece_named(name))].upload(array.floats());
  }
}

}  // namespace samba
