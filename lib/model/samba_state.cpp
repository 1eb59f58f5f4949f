// The decode state of a stack: copies, contents on the host, states of several sequences in one step.
#include <algorithm>

#include "samba/core/error.h"
#include "samba/model/samba_stack.h"
#include "samba/model/samba_stack_impl.h"

namespace samba {

namespace {

bool is_cache(const std::string& piece) { return piece == "k_cache" || piece == "v_cache"; }

// The floats of a cache that hold cached tokens: they lie in front, packed (spec 20 section 5). A ring is whole.
Index used_floats(const std::map<std::string, Index>& counters, Index batch_size, Index all) {
  if (counters.at("window") > 0) return all;
  return batch_size * counters.at("n_kv_heads") * counters.at("cached_tokens") * counters.at("head_dim");
}

std::string layer_name(std::size_t index) { return "layer " + std::to_string(index) + " of the state"; }

// Makes `array` as long as `wanted`, with zeros behind.
Array padded(const Array& array, const Shape& wanted) {
  Array result = Array::zeros(wanted);
  std::copy(array.floats().begin(), array.floats().end(), result.floats().begin());
  return result;
}

void restore_layer(std::size_t index, const ArrayMap& pieces, const std::map<std::string, Index>& counters,
                   BlockState& layer) {
  const ArrayMap wanted = layer.pieces();
  if (wanted.size() != pieces.size()) {
    refuse_value(layer_name(index) + " has " + std::to_string(pieces.size()) + " pieces, the model's layer has " +
                 std::to_string(wanted.size()));
  }
  ArrayMap enlarged;
  ConstArrayMap views;
  for (const auto& [name, array] : pieces) {
    const auto own = wanted.find(name);
    if (own == wanted.end()) refuse_value(layer_name(index) + " has a piece " + name + ", the model's layer has none");
    const bool shorter = is_cache(name) && array.dtype() == DType::float32 && array.shape().size() == 1 &&
                         array.shape()[0] <= own->second.shape()[0];
    if (shorter) {
      views.emplace(name, enlarged.emplace(name, padded(array, own->second.shape())).first->second.view());
    } else {
      views.emplace(name, array.view());
    }
  }
  std::map<std::string, Index> own_counters = counters;
  own_counters.erase("max_tokens");  // the capacity is the new state's
  try {
    layer.set(views, own_counters);
  } catch (const Error& error) {
    refuse_value(layer_name(index) + ": " + error.what());
  }
}

}  // namespace

void SambaState::reset() {
  for (auto& layer : layers_) layer->reset();
  tokens_ = 0;
  broken_ = false;
}

std::unique_ptr<SambaState> SambaState::clone() const {
  std::unique_ptr<SambaState> copy(new SambaState);
  copy->batch_size_ = batch_size_;
  copy->max_tokens_ = max_tokens_;
  copy->tokens_ = tokens_;
  copy->broken_ = broken_;
  copy->config_ = config_;
  copy->numeric_mode_ = numeric_mode_;
  for (const auto& layer : layers_) copy->layers_.push_back(layer->clone());
  return copy;
}

StateContents SambaState::contents() const {
  if (broken_) refuse_value("the state is not usable: a call on it failed midway");
  StateContents contents;
  contents.batch_size = batch_size_;
  contents.tokens = tokens_;
  for (const auto& layer : layers_) {
    std::map<std::string, Index> counters = layer->counters();
    ArrayMap pieces = layer->pieces();
    for (auto& [name, array] : pieces) {
      if (!is_cache(name)) continue;
      const Index used = used_floats(counters, batch_size_, array.shape()[0]);
      array = Array::from_floats({used}, array.floats().first(static_cast<std::size_t>(used)));
    }
    contents.pieces.push_back(std::move(pieces));
    contents.counters.push_back(std::move(counters));
  }
  return contents;
}

std::unique_ptr<SambaState> SambaStack::restore_state(const StateContents& contents, Index max_tokens) {
  const std::size_t layers = impl_->blocks.size();
  if (contents.pieces.size() != layers || contents.counters.size() != layers) {
    refuse_value("the state has pieces of " + std::to_string(contents.pieces.size()) + " and counters of " +
                 std::to_string(contents.counters.size()) + " layers, the model has " + std::to_string(layers));
  }
  if (contents.tokens < 0 || contents.tokens > max_tokens) {
    refuse_value("the state has consumed " + std::to_string(contents.tokens) + " tokens, max_tokens is " +
                 std::to_string(max_tokens));
  }
  std::unique_ptr<SambaState> state = allocate_state(contents.batch_size, max_tokens);
  for (std::size_t i = 0; i < layers; ++i) {
    const auto cached = contents.counters[i].find("cached_tokens");
    if (cached != contents.counters[i].end() && cached->second != contents.tokens) {
      refuse_value(layer_name(i) + " has cached " + std::to_string(cached->second) + " tokens, the state " +
                   std::to_string(contents.tokens));
    }
    restore_layer(i, contents.pieces[i], contents.counters[i], state->layer(i));
    if (contents.tokens > 0) impl_->blocks[i]->check_call(&state->layer(i), 0);
  }
  state->tokens_ = contents.tokens;
  return state;
}

}  // namespace samba
