// EmbeddingKernels of the reference executor: plain scalar loops, straight from the spec.
#pragma once

#include "samba/kernels/embedding.h"

namespace samba::reference {

class EmbeddingReference final : public EmbeddingKernels {
 public:
  void embedding_forward(Index positions, Index width, const std::int32_t* ids, const float* weight, float* y) override;
  void embedding_forward(Index positions, Index width, const std::int32_t* ids, const ConstPackedWeight& weight,
                         float* y) override;
  void embedding_backward(Index positions, Index vocab, Index width, const std::int32_t* ids, const float* dy,
                          bool carry, Index padding_id, float* d_weight) override;
};

}  // namespace samba::reference
