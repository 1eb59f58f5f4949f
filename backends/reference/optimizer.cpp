#include "samba/backends/reference/optimizer.h"

#include "samba/core/error.h"

namespace samba::reference {

void OptimizerReference::adam(const AdamScalars& /*scalars*/, Index /*n*/, const float* /*gradient*/, float* /*parameters*/, float* /*exp_avg*/, float* /*exp_avg_sq*/) { throw Error(ErrorKind::internal, "adam: to be written"); }
void OptimizerReference::sgd(const SgdScalars& /*scalars*/, Index /*n*/, const float* /*gradient*/, float* /*parameters*/, float* /*buffer*/) { throw Error(ErrorKind::internal, "sgd: to be written"); }
void OptimizerReference::sums_of_squares(Index /*tensors*/, const Index* /*sizes*/, const float* /*gradient*/, float* /*sums*/) { throw Error(ErrorKind::internal, "sums_of_squares: to be written"); }
void OptimizerReference::scale(Index /*n*/, float /*coefficient*/, float* /*gradient*/) { throw Error(ErrorKind::internal, "scale: to be written"); }

}  // namespace samba::reference
