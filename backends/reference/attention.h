// AttentionKernels of the reference executor: plain scalar loops, straight from the spec.
#pragma once

#include "samba/kernels/attention.h"
#include "samba/kernels/extended_gradients.h"

namespace samba::reference {

class AttentionReference final : public AttentionKernels, public SoftcapGradients {
 public:
  void attention_forward(const AttentionShape& shape, const float* q, const KeyValueView& view, float* context,
                         const AttentionStages& stages) override;
  void attention_backward(const AttentionShape& shape, const float* q, const float* k, const float* v,
                          const float* d_context, float* dq, float* dk, float* dv,
                          const AttentionBackwardStages& stages) override;
  void store_keys_values(const AttentionShape& shape, const float* k, const float* v, float* keys, float* values,
                         const KeyValueView& layout) override;
};

}  // namespace samba::reference
