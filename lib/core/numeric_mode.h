// What an executor promises of its bits (docs/numeric_modes.md).
#pragma once

#include <string>
#include <string_view>

namespace samba {

enum class NumericMode {
  identical,      // the arithmetic of the spec: the same bits everywhere
  deterministic,  // the same bits for the same call on the same machine and build, whatever the threads
  fast,           // nothing
};

std::string_view numeric_mode_name(NumericMode mode);   // "identical", "deterministic", "fast"
NumericMode parse_numeric_mode(std::string_view name);  // Error(value) that lists the modes

}  // namespace samba
