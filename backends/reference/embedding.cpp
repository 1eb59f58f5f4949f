#include "samba/backends/reference/embedding.h"

#include "samba/core/error.h"

namespace samba::reference {

void EmbeddingReference::embedding_forward(Index /*positions*/, Index /*width*/, const std::int32_t* /*ids*/, const float* /*weight*/, float* /*y*/) { throw Error(ErrorKind::internal, "embedding_forward: to be written"); }
void EmbeddingReference::embedding_backward(Index /*positions*/, Index /*vocab*/, Index /*width*/, const std::int32_t* /*ids*/, const float* /*dy*/, bool /*carry*/, Index /*padding_id*/, float* /*d_weight*/) { throw Error(ErrorKind::internal, "embedding_backward: to be written"); }

}  // namespace samba::reference
