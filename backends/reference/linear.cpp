#include "samba/backends/reference/linear.h"

#include "samba/core/error.h"

namespace samba::reference {

void LinearReference::gemm(Layout /*layout*/, Index /*m*/, Index /*n*/, Index /*k*/, const float* /*a*/, const float* /*b*/, float* /*c*/) { throw Error(ErrorKind::internal, "gemm: to be written"); }
std::unique_ptr<PreparedWeight> LinearReference::prepare(Index /*n*/, Index /*k*/, const float* /*weight*/) { throw Error(ErrorKind::internal, "prepare: to be written"); }
void LinearReference::refresh(PreparedWeight& /*prepared*/, const float* /*weight*/) { throw Error(ErrorKind::internal, "refresh: to be written"); }
void LinearReference::linear(const PreparedWeight& /*weight*/, Index /*m*/, const float* /*x*/, float* /*y*/) { throw Error(ErrorKind::internal, "linear: to be written"); }
void LinearReference::add_bias(Index /*m*/, Index /*n*/, const float* /*bias*/, float* /*y*/) { throw Error(ErrorKind::internal, "add_bias: to be written"); }
void LinearReference::column_sum(Index /*rows*/, Index /*width*/, const float* /*v*/, float* /*out*/) { throw Error(ErrorKind::internal, "column_sum: to be written"); }
float LinearReference::dot(Index /*n*/, const float* /*a*/, const float* /*b*/) { throw Error(ErrorKind::internal, "dot: to be written"); }
float LinearReference::sum(Index /*n*/, const float* /*x*/) { throw Error(ErrorKind::internal, "sum: to be written"); }

}  // namespace samba::reference
