#include "samba/backends/reference/random.h"

#include "samba/core/error.h"

namespace samba::reference {

void RandomReference::uniform(std::uint64_t /*seed*/, std::uint32_t /*stream*/, Index /*n*/, float /*low*/, float /*high*/, float* /*out*/) { throw Error(ErrorKind::internal, "uniform: to be written"); }
void RandomReference::normal(std::uint64_t /*seed*/, std::uint32_t /*stream*/, Index /*n*/, float /*mean*/, float /*deviation*/, float* /*out*/) { throw Error(ErrorKind::internal, "normal: to be written"); }
void RandomReference::dropout(const DropoutKey& /*key*/, Index /*n*/, const float* /*x*/, float* /*y*/) { throw Error(ErrorKind::internal, "dropout: to be written"); }
void RandomReference::residual_dropout(const DropoutKey& /*key*/, Index /*n*/, const float* /*x*/, const float* /*residual*/, float* /*y*/) { throw Error(ErrorKind::internal, "residual_dropout: to be written"); }

}  // namespace samba::reference
