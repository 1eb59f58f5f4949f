#include "samba/backends/reference/rope.h"

#include "samba/core/error.h"

namespace samba::reference {

void RopeReference::rotate(const RopeShape& /*shape*/, const float* /*x*/, const float* /*cosines*/, const float* /*sines*/, float* /*out*/) { throw Error(ErrorKind::internal, "rotate: to be written"); }
void RopeReference::rotate_backward(const RopeShape& /*shape*/, const float* /*d_out*/, const float* /*cosines*/, const float* /*sines*/, float* /*dx*/) { throw Error(ErrorKind::internal, "rotate_backward: to be written"); }

}  // namespace samba::reference
