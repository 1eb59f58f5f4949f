// The kernels of Mamba-2.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/core/error.h"

namespace samba::SAMBA_GPU {

std::unique_ptr<Mamba2Kernels> make_mamba2(Context&) { return nullptr; }

}  // namespace samba::SAMBA_GPU
