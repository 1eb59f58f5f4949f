#include "samba/backends/reference/embedding.h"

#include <algorithm>

#include "samba/kernels/weight.h"
#include "samba/numerics/float32.h"

namespace samba::reference {

void EmbeddingReference::embedding_forward(Index positions, Index width, const std::int32_t* ids, const float* weight,
                                           float* y) {
  for (Index t = 0; t < positions; ++t) {
    for (Index j = 0; j < width; ++j) y[t * width + j] = flush(weight[ids[t] * width + j]);
  }
}

void EmbeddingReference::embedding_forward(Index positions, Index width, const std::int32_t* ids,
                                           const ConstPackedWeight& weight, float* y) {
  for (Index t = 0; t < positions; ++t) {
    const std::span<float> row(y + t * width, static_cast<std::size_t>(width));
    expand(packed_rows(weight, ids[t], ids[t] + 1), row);
    for (float& value : row) value = flush(value);
  }
}

void EmbeddingReference::embedding_backward(Index positions, Index vocab, Index width, const std::int32_t* ids,
                                            const float* dy, bool carry, Index padding_id, float* d_weight) {
  if (!carry) std::fill(d_weight, d_weight + vocab * width, 0.0F);
  for (Index t = 0; t < positions; ++t) {
    if (ids[t] == padding_id) continue;
    float* row = d_weight + ids[t] * width;
    for (Index j = 0; j < width; ++j) row[j] = add(row[j], dy[t * width + j]);
  }
}

}  // namespace samba::reference
