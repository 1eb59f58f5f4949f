// The key-value cache of a transformer block (spec 20 section 5) in device memory.
//
// Held inside as [batch, n_kv_heads, capacity, head_dim] with a fixed stride, capacity = window or max_tokens; under a
// window the slots are a ring. What is exposed (pieces, set) has the public layout: packed at stride cached_tokens, the
// rest +0.0, or the ring as it is. Under fixed15_v1 the codes of the keys lie beside them; a key is quantised once.
#pragma once

#include "samba/blocks/block.h"
#include "samba/blocks/transformer/transformer_options.h"
#include "samba/kernels/attention.h"
#include "samba/kernels/elementwise.h"
#include "samba/kernels/fixed15.h"
#include "samba/kernels/memory.h"

namespace samba {

class TransformerState final : public BlockState {
 public:
  // Error(value) for batch_size or max_tokens below 1.
  TransformerState(Memory& memory, const TransformerOptions& options, Index batch_size, Index max_tokens);

  Index batch_size() const override { return batch_size_; }
  Index n_kv_heads() const { return n_kv_heads_; }
  Index head_dim() const { return head_dim_; }
  Index max_tokens() const { return max_tokens_; }
  Index window() const { return window_; }
  Index cached_tokens() const { return cached_tokens_; }
  Index capacity() const { return window_ > 0 ? window_ : max_tokens_; }
  Index held() const { return cached_tokens_ < capacity() ? cached_tokens_ : capacity(); }  // positions still there

  void reset() override;
  std::unique_ptr<BlockState> clone() const override;

  Shape piece_shape() const;                               // of k_cache and of v_cache: flat
  ArrayMap pieces() const override;                        // k_cache, v_cache
  std::map<std::string, Index> counters() const override;  // cached_tokens; fixed: the other sizes
  // A piece is read at the stride that cached_tokens then has; a new cached_tokens alone reads the exposed buffers
  // anew. The fixed counters can be named with the values they have.
  void set(const ConstArrayMap& pieces, const std::map<std::string, Index>& counters) override;

  // The held positions, ascending: [batch, n_kv_heads, held, head_dim].
  Array held_keys() const { return held_array(keys_); }
  Array held_values() const { return held_array(values_); }

  // Refuses (Error(value)) NaN or infinity in the held part, with the flat index in the public layout.
  void check_finite(ElementwiseKernels& elementwise) const;

  float* keys() { return keys_.data(); }
  float* values() { return values_.data(); }
  KeyValueView view() const;
  // Copies the positions [first, cached_tokens) to the rows 0.. of keys, values: [batch, n_kv_heads, span, head_dim].
  void copy_held(Index first, Index span, float* keys, float* values) const;
  void advance(Index tokens) { cached_tokens_ += tokens; }
  // Under fixed15_v1: quantises the held keys before position `end`, which stand in the cache already, that are not
  // yet.
  void quantize_keys(Fixed15Kernels& kernels, Index end);
  bool fixed15() const { return fixed15_; }

 private:
  Index public_stride() const { return window_ > 0 ? window_ : cached_tokens_; }
  Array export_piece(const DeviceArray<float>& cache) const;
  void import_piece(const float* flat, DeviceArray<float>& cache);
  Array held_array(const DeviceArray<float>& cache) const;

  Memory& memory_;
  Index batch_size_, n_kv_heads_, head_dim_, max_tokens_, window_;
  bool fixed15_;
  Index cached_tokens_ = 0;
  Index quantized_tokens_ = 0;  // the keys of the held positions before this one have their codes
  DeviceArray<float> keys_, values_;
  DeviceArray<std::int16_t> key_codes_;
  DeviceArray<std::int32_t> key_exponents_;
};

}  // namespace samba
