#include "samba/backends/reference/mamba3.h"

#include "samba/core/error.h"

namespace samba::reference {

void Mamba3Reference::prepare_tokens(const Mamba3Call& /*call*/) { throw Error(ErrorKind::internal, "prepare_tokens: to be written"); }
void Mamba3Reference::accumulate_angles(const Mamba3Call& /*call*/) { throw Error(ErrorKind::internal, "accumulate_angles: to be written"); }
void Mamba3Reference::rotate(const Mamba3Call& /*call*/) { throw Error(ErrorKind::internal, "rotate: to be written"); }
void Mamba3Reference::weigh(const Mamba3Call& /*call*/) { throw Error(ErrorKind::internal, "weigh: to be written"); }
void Mamba3Reference::scan(const Mamba3Call& /*call*/) { throw Error(ErrorKind::internal, "scan: to be written"); }
void Mamba3Reference::gate_backward(const Mamba3Call& /*call*/, const Mamba3Gradients& /*gradients*/) { throw Error(ErrorKind::internal, "gate_backward: to be written"); }
void Mamba3Reference::scan_backward(const Mamba3Call& /*call*/, const Mamba3Gradients& /*gradients*/) { throw Error(ErrorKind::internal, "scan_backward: to be written"); }
void Mamba3Reference::rotate_backward(const Mamba3Call& /*call*/, const Mamba3Gradients& /*gradients*/) { throw Error(ErrorKind::internal, "rotate_backward: to be written"); }
void Mamba3Reference::tokens_backward(const Mamba3Call& /*call*/, const Mamba3Gradients& /*gradients*/) { throw Error(ErrorKind::internal, "tokens_backward: to be written"); }

}  // namespace samba::reference
