// One array as a .npy file of NumPy, version 1.0: little-endian, C order.
#pragma once

#include "samba/core/array.h"
#include "samba/core/files.h"

namespace samba {

// Atomically. float32 and int32.
void write_npy(const Path& path, const ConstArray& array);

}  // namespace samba
