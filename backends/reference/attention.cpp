#include "samba/backends/reference/attention.h"

#include "samba/core/error.h"

namespace samba::reference {

void AttentionReference::attention_forward(const AttentionShape& /*shape*/, const float* /*q*/, const KeyValueView& /*view*/, float* /*context*/, const AttentionStages& /*stages*/) { throw Error(ErrorKind::internal, "attention_forward: to be written"); }
void AttentionReference::attention_backward(const AttentionShape& /*shape*/, const float* /*q*/, const float* /*k*/, const float* /*v*/, const float* /*d_context*/, float* /*dq*/, float* /*dk*/, float* /*dv*/, const AttentionBackwardStages& /*stages*/) { throw Error(ErrorKind::internal, "attention_backward: to be written"); }
void AttentionReference::store_keys_values(const AttentionShape& /*shape*/, const float* /*k*/, const float* /*v*/, float* /*keys*/, float* /*values*/, const KeyValueView& /*layout*/) { throw Error(ErrorKind::internal, "store_keys_values: to be written"); }

}  // namespace samba::reference
