// samba verify without --cases and --model: the suites that come with samba.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "commands.h"

namespace samba::apps {

struct SuiteFlags {
  std::vector<std::string> names;
  std::string only;
  bool quick = false;
  bool all = false;  // a line for every case
};

int verify_suites(const SuiteFlags& flags, const CommonOptions& common);
int list_suites(const CommonOptions& common);

// {"samba": version, "build": flags, "machine": {...}}
nlohmann::json origin_json();

}  // namespace samba::apps
