// The Mamba-2 block's intermediate values under their golden names (spec 31 sections 2 and 3, spec 32 section 9).
#pragma once

#include "samba/blocks/mamba2/mamba2_block.h"
#include "samba/blocks/stages.h"

namespace samba {

// Scratch is taken from the workspace: rows and columns cut out of wider arrays.
void record_mamba2_forward(const Mamba2Activations& run, Executor& executor, Workspace& workspace,
                           StageRecorder& stages);
struct Mamba2NormGradients {
  const float* d_gate_normed = nullptr;  // [M, di]  d_gnorm
  const float* d_normed = nullptr;       // [M, d_model]  d_norm
};
void record_mamba2_backward(const Mamba2Call& call, const Mamba2Gradients& gradients, const Mamba2NormGradients& norms,
                            Executor& executor, Workspace& workspace, StageRecorder& stages);

}  // namespace samba
