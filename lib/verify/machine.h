// What a report says about where it was made.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace samba::verify {

int usable_cores();  // of this process

// {"processor", "architecture", "cores", "system", "compiler"}
nlohmann::json machine_json();

}  // namespace samba::verify
