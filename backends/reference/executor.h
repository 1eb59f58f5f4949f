// The reference executor: plain scalar C++, one thread, what every other executor is compared with.
#pragma once

#include <memory>

#include "samba/kernels/executor.h"

namespace samba::reference {

std::unique_ptr<Executor> make_reference_executor();

}  // namespace samba::reference
