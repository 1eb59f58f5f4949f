#include "samba/blocks/transformer/transformer_state.h"

#include <algorithm>

#include "samba/blocks/refusals.h"
#include "samba/core/error.h"
#include "samba/numerics/float32.h"

namespace samba {

namespace {

Index checked(const char* name, Index value) {
  if (value < 1) refuse_value(std::string(name) + " must be at least 1, got " + std::to_string(value));
  return value;
}

std::size_t floats_in_bytes(Index count) { return static_cast<std::size_t>(count) * sizeof(float); }

}  // namespace

TransformerState::TransformerState(Memory& memory, const TransformerOptions& options, Index batch_size,
                                   Index max_tokens)
    : memory_(memory),
      batch_size_(checked("batch_size", batch_size)),
      n_kv_heads_(options.n_kv_heads),
      head_dim_(options.head_dim),
      max_tokens_(checked("max_tokens", max_tokens)),
      window_(options.window),
      fixed15_(options.fixed15()),
      keys_(memory, element_count({batch_size_, n_kv_heads_, capacity(), head_dim_})),
      values_(memory, keys_.size()),
      key_codes_(memory, fixed15_ ? keys_.size() : 0),
      key_exponents_(memory, fixed15_ ? keys_.size() / head_dim_ : 0) {
  reset();
}

void TransformerState::reset() {
  keys_.zero();
  values_.zero();
  cached_tokens_ = 0;
  quantized_tokens_ = 0;
}

std::unique_ptr<BlockState> TransformerState::clone() const {
  TransformerOptions options;
  options.n_kv_heads = n_kv_heads_;
  options.head_dim = head_dim_;
  options.window = window_;
  options.numeric_profile = fixed15_ ? NumericProfile::fixed15_v1 : NumericProfile::fp32_v1;
  auto copy = std::make_unique<TransformerState>(memory_, options, batch_size_, max_tokens_);
  memory_.copy(copy->keys_.data(), keys_.data(), keys_.byte_size());
  memory_.copy(copy->values_.data(), values_.data(), values_.byte_size());
  copy->cached_tokens_ = cached_tokens_;
  return copy;
}

Shape TransformerState::piece_shape() const { return {keys_.size()}; }

ArrayMap TransformerState::pieces() const {
  ArrayMap pieces;
  pieces.emplace("k_cache", export_piece(keys_));
  pieces.emplace("v_cache", export_piece(values_));
  return pieces;
}

std::map<std::string, Index> TransformerState::counters() const {
  return {{"cached_tokens", cached_tokens_},
          {"head_dim", head_dim_},
          {"max_tokens", max_tokens_},
          {"n_kv_heads", n_kv_heads_},
          {"window", window_}};
}

void TransformerState::set(const ConstArrayMap& pieces, const std::map<std::string, Index>& counters) {
  for (const auto& [name, array] : pieces) {
    if (name != "k_cache" && name != "v_cache") {
      refuse_value("a transformer state has no piece '" + name + "'; it has k_cache, v_cache");
    }
    refuse_other_array(name, array, piece_shape());
  }
  Index cached = cached_tokens_;
  const std::map<std::string, Index> fixed = this->counters();
  for (const auto& [name, value] : counters) {
    if (name == "cached_tokens") {
      cached = value;
      continue;
    }
    const auto found = fixed.find(name);
    if (found == fixed.end()) {
      refuse_value("a transformer state has no counter '" + name + "'; it has cached_tokens");
    }
    if (value == found->second) continue;
    refuse_value(name + " of a state is fixed, got " + std::to_string(value) + ", it is " +
                 std::to_string(found->second));
  }
  if (cached < 0 || cached > max_tokens_) {
    refuse_value("cached_tokens must be in 0.." + std::to_string(max_tokens_) + ", got " + std::to_string(cached));
  }
  const bool stride_changes = window_ == 0 && cached != cached_tokens_;
  const auto replace = [&](const char* name, DeviceArray<float>& cache) {
    const auto given = pieces.find(name);
    Array exposed;
    if (given == pieces.end() && !stride_changes) return;
    if (given == pieces.end()) exposed = export_piece(cache);
    const float* flat = given == pieces.end() ? exposed.floats().data() : given->second.floats();
    std::swap(cached, cached_tokens_);
    import_piece(flat, cache);
    std::swap(cached, cached_tokens_);
  };
  replace("k_cache", keys_);
  replace("v_cache", values_);
  cached_tokens_ = cached;
  quantized_tokens_ = 0;
}

Array TransformerState::export_piece(const DeviceArray<float>& cache) const {
  Array inside(DType::float32, piece_shape());
  cache.download(inside.floats().data());
  if (window_ > 0) return inside;
  Array packed(DType::float32, piece_shape());
  const Index run = cached_tokens_ * head_dim_;
  for (Index row = 0; row < batch_size_ * n_kv_heads_; ++row) {
    std::copy_n(inside.floats().data() + row * max_tokens_ * head_dim_, run, packed.floats().data() + row * run);
  }
  return packed;
}

void TransformerState::import_piece(const float* flat, DeviceArray<float>& cache) {
  if (window_ > 0) {
    cache.upload(flat);
    return;
  }
  Array inside(DType::float32, piece_shape());
  const Index run = cached_tokens_ * head_dim_;
  for (Index row = 0; row < batch_size_ * n_kv_heads_; ++row) {
    std::copy_n(flat + row * run, run, inside.floats().data() + row * max_tokens_ * head_dim_);
  }
  cache.upload(inside.floats().data());
}

Array TransformerState::held_array(const DeviceArray<float>& cache) const {
  Array inside(DType::float32, piece_shape());
  cache.download(inside.floats().data());
  Array result(DType::float32, {batch_size_, n_kv_heads_, held(), head_dim_});
  float* to = result.floats().data();
  const KeyValueView layout = view();
  for (Index row = 0; row < batch_size_ * n_kv_heads_; ++row) {
    for (Index p = cached_tokens_ - held(); p < cached_tokens_; ++p) {
      const float* from = inside.floats().data() + row * layout.head_stride + layout.slot(p) * head_dim_;
      to = std::copy_n(from, head_dim_, to);
    }
  }
  return result;
}

void TransformerState::check_finite(ElementwiseKernels& elementwise) const {
  const Index run = held() * head_dim_;
  if (run == 0) return;
  const auto check = [&](const char* name, const DeviceArray<float>& cache) {
    for (Index row = 0; row < batch_size_ * n_kv_heads_; ++row) {
      const float* rows = cache.data() + row * capacity() * head_dim_;
      const Index found = elementwise.first_non_finite(run, rows);
      if (found < 0) continue;
      float value = 0.0F;
      memory_.copy_to_host(&value, rows + found, sizeof value);
      refuse_non_finite(name, value, row * public_stride() * head_dim_ + found);
    }
  };
  check("k_cache", keys_);
  check("v_cache", values_);
}

KeyValueView TransformerState::view() const {
  KeyValueView view;
  view.keys = keys_.data();
  view.values = values_.data();
  view.slot_stride = head_dim_;
  view.head_stride = capacity() * head_dim_;
  view.batch_stride = n_kv_heads_ * view.head_stride;
  view.ring = window_;
  view.key_codes = key_codes_.data();
  view.key_exponents = key_exponents_.data();
  return view;
}

void TransformerState::quantize_keys(Fixed15Kernels& kernels, Index end) {
  const KeyValueView layout = view();
  const Index first = std::max(quantized_tokens_, end - capacity());
  for (Index row = 0; row < batch_size_ * n_kv_heads_; ++row) {
    for (Index p = first; p < end;) {
      const Index slot = layout.slot(p);
      const Index run = std::min(end - p, capacity() - slot);  // up to the end of the ring
      const Index at = row * capacity() + slot;
      kernels.quantize(run, head_dim_, keys_.data() + at * head_dim_, key_codes_.data() + at * head_dim_,
                       key_exponents_.data() + at);
      p += run;
    }
  }
  quantized_tokens_ = end;
}

void TransformerState::copy_held(Index first, Index span, float* keys, float* values) const {
  const KeyValueView layout = view();
  for (Index row = 0; row < batch_size_ * n_kv_heads_; ++row) {
    for (Index p = first; p < cached_tokens_;) {
      const Index slot = layout.slot(p);
      const Index run = std::min(cached_tokens_ - p, capacity() - slot);  // up to the end of the ring
      const Index from = row * layout.head_stride + slot * head_dim_;
      const Index to = (row * span + p - first) * head_dim_;
      memory_.copy(keys + to, keys_.data() + from, floats_in_bytes(run * head_dim_));
      memory_.copy(values + to, values_.data() + from, floats_in_bytes(run * head_dim_));
      p += run;
    }
  }
}

}  // namespace samba
