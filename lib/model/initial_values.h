// Initial values of a stack: one stream id a drawn tensor, in registry order. Those of a SambaStack are in spec 60
// section 3; a general stack adds
//   biases                                            0
//   weights of an offset norm (rmsnorm_offset)        0
//   conv1d.weight, conv1d.bias                        uniform(-1/2, 1/2)
//   A_log of mamba1                                   log(1) .. log(16) in every row, no draw
//   A_log of mamba2                                   uniform(0, 2.7725887)
//   dt_proj.bias of mamba1, dt_bias                   uniform(-4, -2)
#pragma once

#include "samba/kernels/executor.h"
#include "samba/model/registry.h"
#include "samba/numerics/generator.h"

namespace samba {

// parameters (device): registry.total() floats. The generator moves by the number of drawn tensors; when its streams do
// not suffice the call is refused (Error(value)) and the generator stays.
void draw_initial_values(Executor& executor, const StackConfig& config, const Registry& registry, Generator& generator,
                         float* parameters);

}  // namespace samba
