// The inputs that fuzzing begins with: small sound files, made here or cut out of the test data of the repository.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "samba/core/files.h"

namespace samba::fuzz {

std::map<std::string, std::vector<std::string>> make_seeds();  // by reader
void write_seeds(const Path& folder);  // folder/READER/NUMBER, and the words for it: folder/READER.dict

}  // namespace samba::fuzz
