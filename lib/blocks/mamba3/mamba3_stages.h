// The Mamba-3 block's intermediate values under their golden names (spec 40 section 10, spec 41 section 7).
#pragma once

#include "samba/blocks/mamba3/mamba3_block.h"
#include "samba/blocks/stages.h"

namespace samba {

// Scratch is taken from the workspace: rows of the buffer and of the call joined, columns cut out of a wider array.
void record_mamba3_forward(const Mamba3Activations& activations, Memory& memory, Workspace& workspace,
                           StageRecorder& stages);
void record_mamba3_backward(const Mamba3Call& call, const Mamba3Gradients& gradients, const float* d_norm,
                            Memory& memory, Workspace& workspace, StageRecorder& stages);

}  // namespace samba
