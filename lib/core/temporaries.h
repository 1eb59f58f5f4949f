// The files and folders that are being written under another name and must go when the program cannot go on: where no
// destructor runs (std::terminate, a signal), the one who ends the program asks for it here.
#pragma once

#include "samba/core/files.h"

namespace samba {

// Never fail. What is beyond the room there is (16 paths), or longer than 4095 bytes, is not remembered.
void remember_temporary(const Path& path) noexcept;
void forget_temporary(const Path& path) noexcept;

// Removes the remembered files; folders with their content too when `folders` (which takes memory; without it the call
// may be made in a signal handler).
void remove_temporaries(bool folders) noexcept;

}  // namespace samba
