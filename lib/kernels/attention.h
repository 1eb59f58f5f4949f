// Causal attention with grouped KV heads over the visible keys (spec 20 section 3 steps 7 to 13, section 4; backward:
// spec 21 section 5 steps 9 to 14).
#pragma once

#include <cstdint>
#include <optional>

#include "samba/core/array.h"

namespace samba {

struct AttentionShape {
  Index batch = 0;
  Index queries = 0;  // L, tokens of this call
  Index n_heads = 0;
  Index n_kv_heads = 0;
  Index head_dim = 0;
  Index window = 0;          // 0: full causal
  Index first_position = 0;  // absolute position of query 0
  std::optional<float> softcap;

  constexpr Index first_key() const {  // key_lo: absolute position of the span's first key
    if (window == 0 || first_position - window + 1 <= 0) return 0;
    return first_position - window + 1;
  }
  constexpr Index keys() const { return first_position + queries - first_key(); }  // S, the length of the span

  // The visible keys of the query at absolute position p are [first_visible(p), p].
  constexpr Index first_visible(Index p) const { return window == 0 || p < window ? 0 : p - window + 1; }
};

// Where the keys and values of the span lie. The row of the key at absolute position p, KV head g, batch row b is
//   keys + b*batch_stride + g*head_stride + slot(p)*slot_stride,   slot(p) = ring > 0 ? p % ring : p - origin
// and head_dim consecutive floats there; the same for values. Under numeric_profile fixed15_v1 the codes of the keys
// (samba/kernels/fixed15.h) lie in the same layout, and the exponent of a key's row at row(...) / head_dim.
struct KeyValueView {
  const float* keys = nullptr;
  const float* values = nullptr;
  Index batch_stride = 0, head_stride = 0, slot_stride = 0;
  Index ring = 0;
  Index origin = 0;
  const std::int16_t* key_codes = nullptr;  // null: fp32_v1
  const std::int32_t* key_exponents = nullptr;

  constexpr Index slot(Index p) const { return ring > 0 ? p % ring : p - origin; }
  constexpr Index row(Index batch_row, Index kv_head, Index p) const {  // offset of a key's (and value's) first float
    return batch_row * batch_stride + kv_head * head_stride + slot(p) * slot_stride;
  }
};

// Intermediates for the stages of recorded cases, each null or [batch, n_heads, queries, S] (maximum, denominators:
// [batch, n_heads, queries]). Masked cells as spec 20 section 4 says.
struct AttentionStages {
  float* scores = nullptr;
  float* masked = nullptr;
  float* maximum = nullptr;
  float* exponentials = nullptr;
  float* denominators = nullptr;
  float* weights = nullptr;
};

// Stages of the backward: [batch, n_heads, L, L], +0 at masked pairs; z_dot: [batch, n_heads, L].
struct AttentionBackwardStages {
  float* d_weights = nullptr;
  float* z_dot = nullptr;
  float* d_masked = nullptr;
  float* d_scores = nullptr;  // "d_qk_cell"
};

class AttentionKernels {
 public:
  virtual ~AttentionKernels() = default;

  // q (rotated), context: [batch * queries, n_heads * head_dim]. With codes of the keys in the view the scores are
  // those of fixed15_v1: the rows of q are quantised, head by head, and multiplied by the keys' codes.
  virtual void attention_forward(const AttentionShape& shape, const float* q, const KeyValueView& view, float* context,
                                 const AttentionStages& stages) = 0;

  // From an empty cache: first_position = 0, no softcap, L = shape.queries. q, d_context, dq: [batch*L,
  // n_heads*head_dim]; k (rotated), v, dk, dv: [batch*L, n_kv_heads*head_dim]. The weights are rebuilt from q and k.
  virtual void attention_backward(const AttentionShape& shape, const float* q, const float* k, const float* v,
                                  const float* d_context, float* dq, float* dk, float* dv,
                                  const AttentionBackwardStages& stages) = 0;

  // Appends rows to a cache in the layout of `view` (its pointers are written): k, v [batch*count, n_kv_heads*head_dim]
  // go to the positions first_position .. first_position+count-1, in position order.
  virtual void store_keys_values(const AttentionShape& shape, const float* k, const float* v, float* keys,
                                 float* values, const KeyValueView& layout) = 0;
};

}  // namespace samba
