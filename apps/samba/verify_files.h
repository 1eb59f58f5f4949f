// samba verify --replay, --compare, --record, --against: runs, files and machines against each other.
#pragma once

#include <string>
#include <vector>

#include "commands.h"

namespace samba::apps {

int verify_replay(const std::string& run, const std::string& steps, const CommonOptions& common);
struct RecordFlags {
  std::string record, against;  // the file
  std::string model;            // of --against: empty for the one of the record
  std::vector<std::string> prompts, tokens;
  int decode = 16;
};
int record_model(const RecordFlags& flags, const CommonOptions& common);
int verify_against(const RecordFlags& flags, const CommonOptions& common);

int verify_compare(const std::vector<std::string>& paths, const CommonOptions& common);

}  // namespace samba::apps
