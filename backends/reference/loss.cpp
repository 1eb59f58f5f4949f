#include "samba/backends/reference/loss.h"

#include "samba/core/error.h"

namespace samba::reference {

void LossReference::cross_entropy(const CrossEntropyShape& /*shape*/, const float* /*logits*/, const std::int32_t* /*targets*/, float /*divisor*/, float* /*row_loss*/, float* /*d_logits*/, const CrossEntropyStages& /*stages*/) { throw Error(ErrorKind::internal, "cross_entropy: to be written"); }
float LossReference::chunked_lm_head_loss(Index /*rows*/, Index /*width*/, Index /*classes*/, const float* /*hidden*/, const float* /*weight*/, const std::int32_t* /*targets*/, float* /*d_hidden*/, float* /*d_weight*/) { throw Error(ErrorKind::internal, "chunked_lm_head_loss: to be written"); }

}  // namespace samba::reference
