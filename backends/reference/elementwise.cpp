#include "samba/backends/reference/elementwise.h"

#include "samba/core/error.h"

namespace samba::reference {

void ElementwiseReference::unary(UnaryFunction /*function*/, Index /*n*/, const float* /*x*/, float* /*out*/) { throw Error(ErrorKind::internal, "unary: to be written"); }
void ElementwiseReference::binary(BinaryFunction /*function*/, Index /*n*/, const float* /*a*/, const float* /*b*/, float* /*out*/) { throw Error(ErrorKind::internal, "binary: to be written"); }
void ElementwiseReference::clamp(Index /*n*/, const float* /*x*/, float /*low*/, float /*high*/, float* /*out*/) { throw Error(ErrorKind::internal, "clamp: to be written"); }
void ElementwiseReference::add(Index /*n*/, const float* /*a*/, const float* /*b*/, float* /*out*/) { throw Error(ErrorKind::internal, "add: to be written"); }
void ElementwiseReference::flush(Index /*n*/, const float* /*x*/, float* /*out*/) { throw Error(ErrorKind::internal, "flush: to be written"); }
void ElementwiseReference::swiglu_forward(Index /*n*/, const float* /*gate*/, const float* /*up*/, float* /*act*/, float* /*gated*/) { throw Error(ErrorKind::internal, "swiglu_forward: to be written"); }
void ElementwiseReference::swiglu_backward(Index /*n*/, const float* /*gate*/, const float* /*up*/, const float* /*act*/, const float* /*d_gated*/, float* /*d_act*/, float* /*d_up*/, float* /*d_gate*/) { throw Error(ErrorKind::internal, "swiglu_backward: to be written"); }
void ElementwiseReference::zero_padding(Index /*batch*/, Index /*length*/, Index /*width*/, const std::int32_t* /*lengths*/, float* /*x*/) { throw Error(ErrorKind::internal, "zero_padding: to be written"); }
Index ElementwiseReference::first_non_finite(Index /*n*/, const float* /*x*/) { throw Error(ErrorKind::internal, "first_non_finite: to be written"); }

}  // namespace samba::reference
