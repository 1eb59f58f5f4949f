#pragma once

#include <string>

#include "block_case.h"

namespace samba {

// The first property of properties.h that the case breaks, with the first value that differs; empty when all hold.
std::string violation(const BlockCase& block);

}  // namespace samba
