// The serial tail chains of the Mamba-3 scan's backward, which have a file of their own.
#pragma once

#include "samba/backends/cpu/context.h"
#include "samba/kernels/mamba3.h"

namespace samba::cpu {

// Adds the chain of spec 41 section 3.7 step 5 to d_dacs_rec of the last row of every chunk but a sequence's last,
// whose chain is +0. Needs state_gradients (G) complete and d_dacs_rec of step 4.
void mamba3_tail_chains(Context& context, const Mamba3Call& call, const Mamba3Gradients& gradients);

}  // namespace samba::cpu
