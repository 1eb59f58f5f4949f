// What readers and seeds share: an executor without vector kernels, and a stack so small that its files are.
#pragma once

#include "samba/kernels/executor.h"
#include "samba/model/samba_stack.h"

namespace samba::fuzz {

Executor& reference_executor();

StackConfig tiny_stack_config();
SambaStack& tiny_stack();  // always the same weights

}  // namespace samba::fuzz
