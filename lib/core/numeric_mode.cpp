#include "samba/core/numeric_mode.h"

#include "samba/core/error.h"

namespace samba {

std::string_view numeric_mode_name(NumericMode mode) {
  switch (mode) {
    case NumericMode::identical:
      return "identical";
    case NumericMode::deterministic:
      return "deterministic";
    case NumericMode::fast:
      return "fast";
  }
  throw Error(ErrorKind::internal, "unknown numeric mode");
}

NumericMode parse_numeric_mode(std::string_view name) {
  for (const NumericMode mode : {NumericMode::identical, NumericMode::deterministic, NumericMode::fast}) {
    if (name == numeric_mode_name(mode)) return mode;
  }
  refuse_value("numeric mode '" + std::string(name) + "' is unknown; accepted: identical, deterministic, fast");
}

}  // namespace samba
