#include "samba/blocks/mamba3/mamba3_state.h"

#include <string>

#include "samba/core/error.h"

namespace samba {

namespace {

constexpr std::array<std::string_view, kMamba3Pieces> kNames = {"theta",     "h",         "buffer_qrot", "buffer_krot",
                                                                "buffer_v",  "buffer_dt", "buffer_sig",  "buffer_adt",
                                                                "pending_k", "pending_v"};

std::string accepted_names() {
  std::string text;
  for (std::string_view name : kNames) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

Mamba3Piece piece_named(std::string_view name) {
  for (std::size_t i = 0; i < kMamba3Pieces; ++i) {
    if (kNames[i] == name) return static_cast<Mamba3Piece>(i);
  }
  refuse_value("unknown state piece " + std::string(name) + "; the pieces are " + accepted_names());
}

void check_array(std::string_view name, const ConstArray& array, const Shape& wanted) {
  if (array.dtype != DType::float32) {
    refuse_type(std::string(name) + " is " + std::string(dtype_name(array.dtype)) + "; a state holds float32 only");
  }
  if (array.shape != wanted) {
    refuse_value(std::string(name) + " has shape " + shape_text(array.shape) + "; wanted is " + shape_text(wanted));
  }
}

}  // namespace

Mamba3State::Mamba3State(Memory& memory, Index d_model, Index batch_size, Index head_start_size)
    : memory_(memory),
      d_model_(d_model),
      batch_size_(batch_size),
      head_start_size_(head_start_size),
      head_start_(memory, batch_size * mamba3::heads(d_model) * head_start_size) {
  for (std::size_t i = 0; i < kMamba3Pieces; ++i) {
    arrays_[i] = DeviceArray<float>(memory, element_count(piece_shape(static_cast<Mamba3Piece>(i))));
  }
  reset();
}

std::string_view Mamba3State::piece_name(Mamba3Piece piece) { return kNames[static_cast<std::size_t>(piece)]; }

Shape Mamba3State::piece_shape(Mamba3Piece piece, Index batch_size, Index d_model) {
  using namespace mamba3;
  const Index heads = mamba3::heads(d_model);
  switch (piece) {
    case Mamba3Piece::theta:
      return {batch_size, heads, kAngles};
    case Mamba3Piece::h:
      return {batch_size, heads, kHeadDim, kStateSize};
    case Mamba3Piece::buffer_qrot:
    case Mamba3Piece::buffer_krot:
      return {batch_size, kChunk, heads, kStateSize};
    case Mamba3Piece::buffer_v:
      return {batch_size, kChunk, heads, kHeadDim};
    case Mamba3Piece::buffer_dt:
    case Mamba3Piece::buffer_sig:
    case Mamba3Piece::buffer_adt:
      return {batch_size, kChunk, heads};
    case Mamba3Piece::pending_k:
      return {batch_size, heads, kStateSize};
    case Mamba3Piece::pending_v:
      return {batch_size, heads, kHeadDim};
  }
  throw Error(ErrorKind::internal, "no such Mamba-3 state piece");
}

void Mamba3State::reset() {
  for (DeviceArray<float>& array : arrays_) array.zero();
  buffered_tokens_ = 0;
  pending_ = false;
  head_start_known_ = false;
}

std::unique_ptr<BlockState> Mamba3State::clone() const {
  auto copy = std::make_unique<Mamba3State>(memory_, d_model_, batch_size_, head_start_size_);
  for (std::size_t i = 0; i < kMamba3Pieces; ++i) {
    memory_.copy(copy->arrays_[i].data(), arrays_[i].data(), arrays_[i].byte_size());
  }
  copy->buffered_tokens_ = buffered_tokens_;
  copy->pending_ = pending_;
  return copy;
}

ArrayMap Mamba3State::pieces() const {
  ArrayMap result;
  for (std::size_t i = 0; i < kMamba3Pieces; ++i) {
    Array array = Array::zeros(piece_shape(static_cast<Mamba3Piece>(i)));
    arrays_[i].download(array.floats().data());
    result.emplace(kNames[i], std::move(array));
  }
  return result;
}

std::map<std::string, Index> Mamba3State::counters() const {
  return {{"buffered_tokens", buffered_tokens_}, {"pending", pending_ ? 1 : 0}};
}

void Mamba3State::set(const ConstArrayMap& pieces, const std::map<std::string, Index>& counters) {
  for (const auto& [name, array] : pieces) check_array(name, array, piece_shape(piece_named(name)));
  for (const auto& [name, value] : counters) {
    if (name != "buffered_tokens" && name != "pending") {
      refuse_value("unknown state counter " + name + "; the counters are buffered_tokens, pending");
    }
    if (name == "pending" && value != 0 && value != 1) {
      refuse_value("pending is " + std::to_string(value) + "; it is 0 or 1");
    }
  }
  head_start_known_ = false;
  for (const auto& [name, array] : pieces) {
    arrays_[static_cast<std::size_t>(piece_named(name))].upload(array.floats());
  }
  if (const auto found = counters.find("buffered_tokens"); found != counters.end()) buffered_tokens_ = found->second;
  if (const auto found = counters.find("pending"); found != counters.end()) pending_ = found->second != 0;
}

void Mamba3State::set_input_states(ConstArray theta, ConstArray h, ConstArray k, ConstArray v) {
  check_array("theta", theta, piece_shape(Mamba3Piece::theta));
  check_array("h", h, piece_shape(Mamba3Piece::h));
  check_array("k", k, piece_shape(Mamba3Piece::pending_k));
  check_array("v", v, piece_shape(Mamba3Piece::pending_v));
  set({{"theta", theta}, {"h", h}, {"pending_k", k}, {"pending_v", v}}, {{"pending", 1}});
}

void Mamba3State::finish_call(Index keep, bool head_start_known) {
  buffered_tokens_ = keep;
  head_start_known_ = head_start_known;
  if (!pending_) return;
  pending_ = false;
  for (const Mamba3Piece piece : {Mamba3Piece::pending_k, Mamba3Piece::pending_v}) {
    arrays_[static_cast<std::size_t>(piece)].zero();
  }
}

Mamba3Rows Mamba3State::buffer() {
  return {.q = data(Mamba3Piece::buffer_qrot),
          .k = data(Mamba3Piece::buffer_krot),
          .v = data(Mamba3Piece::buffer_v),
          .dt = data(Mamba3Piece::buffer_dt),
          .sigma = data(Mamba3Piece::buffer_sig),
          .adt = data(Mamba3Piece::buffer_adt),
          .rows = mamba3::kChunk,
          .v_stride = mamba3::d_inner(d_model_)};
}

}  // namespace samba
