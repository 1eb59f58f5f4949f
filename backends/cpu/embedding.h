// Embedding kernels of the cpu executor: the forward splits over positions, the backward over columns.
#pragma once

#include "samba/backends/cpu/context.h"
#include "samba/kernels/embedding.h"

namespace samba::cpu {

struct EmbeddingGradient {
  Index positions, vocab, width;
  const std::int32_t* ids;
  const float* dy;
  bool carry;
  Index padding_id;
  float* d_weight;
};

class EmbeddingCpu final : public EmbeddingKernels {
 public:
  explicit EmbeddingCpu(Context& context) : context_(context) {}

  void embedding_forward(Index positions, Index width, const std::int32_t* ids, const float* weight, float* y) override;
  void embedding_forward(Index positions, Index width, const std::int32_t* ids, const ConstPackedWeight& weight,
                         float* y) override;
  void embedding_backward(Index positions, Index vocab, Index width, const std::int32_t* ids, const float* dy,
                          bool carry, Index padding_id, float* d_weight) override;

 private:
  Context& context_;
};

}  // namespace samba::cpu
