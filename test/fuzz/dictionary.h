// Words for libFuzzer (-dict=FILE): what its own changes of bytes would hardly ever spell.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace samba::fuzz {

// The texts between quotation marks in the seeds, and what this reader looks for beside them.
std::string dictionary(std::string_view reader, const std::vector<std::string>& seeds);

}  // namespace samba::fuzz
