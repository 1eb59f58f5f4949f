// Initial values of a stack (spec 60 section 3): one stream id a drawn tensor, in registry order.
#pragma once

#include "samba/kernels/executor.h"
#include "samba/model/registry.h"
#include "samba/numerics/generator.h"

namespace samba {

// parameters (device): registry.total() floats. The generator moves by the number of drawn tensors; when its streams do
// not suffice the call is refused (Error(value)) and the generator stays.
void draw_initial_values(Executor& executor, const Registry& registry, Generator& generator, float* parameters);

}  // namespace samba
