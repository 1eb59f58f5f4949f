// Which tensors of a stack training leaves as they are: patterns over the names of the registry.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "samba/model/registry.h"

namespace samba {

// `*` stands for any run of characters, dots among them, `?` for one character.
bool matches_pattern(std::string_view pattern, std::string_view name);

// One flag a tensor: true when one of the patterns has its name. Error(value) that names /train/freeze/i for a pattern
// that matches no tensor, and /train/freeze when nothing is left to train.
std::vector<bool> frozen_tensors(const Registry& registry, const std::vector<std::string>& patterns);

}  // namespace samba
