// The kernels of Mamba-1.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/core/error.h"

namespace samba::SAMBA_GPU {

std::unique_ptr<Mamba1Kernels> make_mamba1(Context&) { return nullptr; }

}  // namespace samba::SAMBA_GPU
