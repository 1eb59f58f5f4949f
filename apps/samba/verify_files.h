// samba verify --replay, --compare: runs and files against each other.
#pragma once

#include <string>
#include <vector>

#include "commands.h"

namespace samba::apps {

int verify_replay(const std::string& run, const std::string& steps, const CommonOptions& common);
int verify_compare(const std::vector<std::string>& paths, const CommonOptions& common);

}  // namespace samba::apps
