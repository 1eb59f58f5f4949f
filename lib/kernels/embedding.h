// Embedding (spec 10 section 8). ids: int32 [positions], checked by the caller. weight: [vocab, width].
#pragma once

#include "samba/core/array.h"
#include "samba/numerics/packed_weight.h"

namespace samba {

class EmbeddingKernels {
 public:
  virtual ~EmbeddingKernels() = default;

  // y[t, :] = F(weight[ids[t], :])
  virtual void embedding_forward(Index positions, Index width, const std::int32_t* ids, const float* weight,
                                 float* y) = 0;
  // The same from a packed table in device memory; a row is expanded when it is read.
  virtual void embedding_forward(Index positions, Index width, const std::int32_t* ids, const ConstPackedWeight& weight,
                                 float* y) = 0;

  // d_weight[ids[t], j] = F(d_weight + F(dy[t, j])), t ascending, one chain a cell. Starts from +0 everywhere, or with
  // `carry` from what d_weight holds. Positions whose id is padding_id (-1: none) are skipped.
  virtual void embedding_backward(Index positions, Index vocab, Index width, const std::int32_t* ids, const float* dy,
                                  bool carry, Index padding_id, float* d_weight) = 0;
};

}  // namespace samba
