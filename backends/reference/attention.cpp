// One row (batch row, head, query) at a time, over the span's S keys; cells of a row are span indices s, key
// first_key() + s. Forward: spec 20 section 3 steps 7 to 13; backward: spec 21 section 5 steps 9 to 14.
#include "samba/backends/reference/attention.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "samba/backends/reference/clones.h"
#include "samba/backends/reference/fixed15.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/fixed15.h"
#include "samba/numerics/float32.h"
#include "samba/numerics/fold.h"

namespace samba::reference {

namespace {

constexpr float kMaskedBias = from_bits(0xFF7FFFFFU);  // -FLT_MAX

using Cells = std::vector<float>;

// The softmax of one row. Cells before `first` and from `end` on are masked; their exponentials and weights are +0.
struct Row {
  explicit Row(Index keys)
      : scores(static_cast<std::size_t>(keys)),
        masked(scores),
        exponentials(scores),
        weights(scores),
        squashed(scores) {}
  std::size_t first = 0, end = 0;  // the visible cells
  Cells scores, masked, exponentials, weights;
  Cells squashed;  // under a softcap, tanh(score / cap)
  float maximum = 0.0F;
  float denominator = 0.0F;
};

float squash(float score, float softcap) { return flush(elementary::tanh(div(score, flush(softcap)))); }

// Step 7's product of the query with the keys of the span, by the profile of the view.
class ScoreDots {
 public:
  ScoreDots(Index head_dim, const float* q, const KeyValueView& view)
      : head_dim_(head_dim),
        q_(q),
        view_(view),
        codes_(static_cast<std::size_t>(view.key_codes != nullptr ? head_dim : 0)) {
    if (view.key_codes != nullptr) exponent_ = quantize_row(head_dim, q, codes_.data());
  }
  float operator()(Index key_row) const {
    if (view_.key_codes != nullptr) {
      const std::int64_t sum = fixed15_dot(head_dim_, codes_.data(), view_.key_codes + key_row);
      return fixed15_cell(sum, exponent_, view_.key_exponents[key_row / head_dim_]);
    }
    const auto element = [](const float* values) { return [values](Index i) { return values[i]; }; };
    return dot(head_dim_, element(q_), element(view_.keys + key_row));
  }

 private:
  Index head_dim_;
  const float* q_;
  const KeyValueView& view_;
  std::vector<std::int16_t> codes_;
  std::int32_t exponent_ = 0;
};

// Steps 7 to 12 of the query `q` [head_dim] at span index `at` (its own key's).
SAMBA_FMA_CLONES
void softmax_row(const AttentionShape& shape, Index batch_row, Index kv_head, Index at, const float* q,
                 const KeyValueView& view, Row& row) {
  const float scale = elementary::rsqrt(static_cast<float>(shape.head_dim));
  const ScoreDots dots(shape.head_dim, q, view);
  const Index first_key = shape.first_key();
  row.first = static_cast<std::size_t>(shape.first_visible(first_key + at) - first_key);
  row.end = static_cast<std::size_t>(at + 1);
  for (std::size_t s = 0; s < row.scores.size(); ++s) {
    float score = mul(dots(view.row(batch_row, kv_head, first_key + static_cast<Index>(s))), scale);
    if (shape.softcap) {
      row.squashed[s] = squash(score, *shape.softcap);
      score = mul(row.squashed[s], *shape.softcap);
    }
    const bool visible = s >= row.first && s < row.end;
    row.scores[s] = score;
    row.masked[s] = add(score, visible ? 0.0F : kMaskedBias);
    row.maximum = s == 0 ? max(row.masked[s], row.masked[s]) : max(row.maximum, row.masked[s]);
  }
  std::fill(row.exponentials.begin(), row.exponentials.end(), 0.0F);
  std::fill(row.weights.begin(), row.weights.end(), 0.0F);
  row.denominator = 0.0F;
  for (std::size_t s = row.first; s < row.end; ++s) {
    row.exponentials[s] = flush(elementary::exp(sub(row.masked[s], row.maximum)));
    row.denominator = add(row.denominator, row.exponentials[s]);
  }
  for (std::size_t s = row.first; s < row.end; ++s) row.weights[s] = div(row.exponentials[s], row.denominator);
}

// Step 13: one chain over the visible keys for every depth.
SAMBA_FMA_CLONES
void sum_values(const AttentionShape& shape, Index batch_row, Index kv_head, const Row& row, const KeyValueView& view,
                float* out) {
  std::fill(out, out + shape.head_dim, 0.0F);
  for (std::size_t s = row.first; s < row.end; ++s) {
    const float* value = view.values + view.row(batch_row, kv_head, shape.first_key() + static_cast<Index>(s));
    for (Index d = 0; d < shape.head_dim; ++d) out[d] = mad(row.weights[s], value[d], out[d]);
  }
}

void record(float* stage, Index row, const Cells& cells) {
  if (stage != nullptr) std::copy(cells.begin(), cells.end(), stage + row * static_cast<Index>(cells.size()));
}

void record(const AttentionStages& stages, Index at, const Row& row) {
  record(stages.scores, at, row.scores);
  record(stages.masked, at, row.masked);
  record(stages.exponentials, at, row.exponentials);
  record(stages.weights, at, row.weights);
  if (stages.maximum != nullptr) stages.maximum[at] = row.maximum;
  if (stages.denominators != nullptr) stages.denominators[at] = row.denominator;
}

// One head of one batch row of a backward: pointers to its column of each array, rows `stride` or `kv_stride` apart.
struct HeadGradient {
  bool capped;
  Index head_dim, stride, kv_stride;
  const float *q, *k, *v, *d_context;
  float *dq, *dk, *dv;
};

// Steps 9 to 14 of query t, whose weights are in `row`; dk and dv are the running accumulators.
SAMBA_FMA_CLONES
void backward_row(const HeadGradient& head, Index t, const Row& row, float scale, Cells& d_weights, float& z,
                  Cells& d_masked, Cells& d_scores) {
  const float* q = head.q + t * head.stride;
  const float* d_context = head.d_context + t * head.stride;
  float* dq = head.dq + t * head.stride;
  z = 0.0F;
  for (std::size_t s = row.first; s < row.end; ++s) {
    const float* value = head.v + static_cast<Index>(s) * head.kv_stride;
    d_weights[s] = dot(
        head.head_dim, [&](Index d) { return d_context[d]; }, [&](Index d) { return value[d]; });
    z = mad(d_weights[s], row.weights[s], z);
  }
  std::fill(dq, dq + head.head_dim, 0.0F);
  for (std::size_t s = row.first; s < row.end; ++s) {
    d_masked[s] = mul(row.weights[s], sub(d_weights[s], z));
    float d_score = d_masked[s];
    if (head.capped) d_score = mul(d_score, sub(1.0F, mul(row.squashed[s], row.squashed[s])));
    d_scores[s] = mul(d_score, scale);
    const Index key_row = static_cast<Index>(s) * head.kv_stride;
    for (Index d = 0; d < head.head_dim; ++d) {
      dq[d] = mad(d_scores[s], head.k[key_row + d], dq[d]);
      head.dk[key_row + d] = mad(d_scores[s], q[d], head.dk[key_row + d]);
      head.dv[key_row + d] = mad(row.weights[s], d_context[d], head.dv[key_row + d]);
    }
  }
}

}  // namespace

void AttentionReference::attention_forward(const AttentionShape& shape, const float* q, const KeyValueView& view,
                                           float* context, const AttentionStages& stages) {
  const Index first_key = shape.first_key();
  const Index group = shape.n_heads / shape.n_kv_heads;
  Row row(shape.keys());
  for (Index b = 0; b < shape.batch; ++b) {
    for (Index h = 0; h < shape.n_heads; ++h) {
      for (Index t = 0; t < shape.queries; ++t) {
        const Index column = ((b * shape.queries + t) * shape.n_heads + h) * shape.head_dim;
        softmax_row(shape, b, h / group, shape.first_position + t - first_key, q + column, view, row);
        record(stages, (b * shape.n_heads + h) * shape.queries + t, row);
        sum_values(shape, b, h / group, row, view, context + column);
      }
    }
  }
}

void AttentionReference::attention_backward(const AttentionShape& shape, const float* q, const float* k, const float* v,
                                            const float* d_context, float* dq, float* dk, float* dv,
                                            const AttentionBackwardStages& stages) {
  const Index length = shape.queries;
  const Index group = shape.n_heads / shape.n_kv_heads;
  const Index stride = shape.n_heads * shape.head_dim;
  const Index kv_stride = shape.n_kv_heads * shape.head_dim;
  const KeyValueView view{k, v, length * kv_stride, shape.head_dim, kv_stride, 0, 0};
  const float scale = elementary::rsqrt(static_cast<float>(shape.head_dim));
  std::fill(dk, dk + shape.batch * length * kv_stride, 0.0F);
  std::fill(dv, dv + shape.batch * length * kv_stride, 0.0F);
  Row row(length);
  for (Index b = 0; b < shape.batch; ++b) {
    for (Index h = 0; h < shape.n_heads; ++h) {
      const Index column = b * length * stride + h * shape.head_dim;
      const Index kv_column = view.row(b, h / group, 0);
      const HeadGradient head{shape.softcap.has_value(),
                              shape.head_dim,
                              stride,
                              kv_stride,
                              q + column,
                              k + kv_column,
                              v + kv_column,
                              d_context + column,
                              dq + column,
                              dk + kv_column,
                              dv + kv_column};
      for (Index t = 0; t < length; ++t) {
        softmax_row(shape, b, h / group, t, head.q + t * stride, view, row);
        Cells d_weights(static_cast<std::size_t>(length)), d_masked(d_weights), d_scores(d_weights);
        float z = 0.0F;
        backward_row(head, t, row, scale, d_weights, z, d_masked, d_scores);
        const Index at = (b * shape.n_heads + h) * length + t;
        record(stages.d_weights, at, d_weights);
        record(stages.d_masked, at, d_masked);
        record(stages.d_scores, at, d_scores);
        if (stages.z_dot != nullptr) stages.z_dot[at] = z;
      }
    }
  }
}

void AttentionReference::store_keys_values(const AttentionShape& shape, const float* k, const float* v, float* keys,
                                           float* values, const KeyValueView& layout) {
  const auto bytes = static_cast<std::size_t>(shape.head_dim) * sizeof(float);
  for (Index b = 0; b < shape.batch; ++b) {
    for (Index t = 0; t < shape.queries; ++t) {
      for (Index g = 0; g < shape.n_kv_heads; ++g) {
        const Index from = ((b * shape.queries + t) * shape.n_kv_heads + g) * shape.head_dim;
        const Index to = layout.row(b, g, shape.first_position + t);
        std::memcpy(keys + to, k + from, bytes);
        std::memcpy(values + to, v + from, bytes);
      }
    }
  }
}

}  // namespace samba::reference
