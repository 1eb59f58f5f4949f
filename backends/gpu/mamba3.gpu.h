// The kernels of Mamba-3.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/core/error.h"

namespace samba::SAMBA_GPU {

std::unique_ptr<Mamba3Kernels> make_mamba3(Context&) { return nullptr; }

}  // namespace samba::SAMBA_GPU
