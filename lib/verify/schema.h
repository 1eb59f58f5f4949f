// The keys that each kind of case, call and result may have (test/golden/README.md and the pages beside it). Whatever
// is unknown or missing is Error(corrupt, "case", "WHERE: ...").
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace samba::verify {

// `keys`: the accepted keys, separated by spaces; those with a question mark may be absent.
void check_keys(const nlohmann::json& object, std::string_view keys, const std::string& where);

// Each returns the kind under which the case runs.
std::string check_case(const nlohmann::json& body, const std::string& where);
std::string check_hash_case(const nlohmann::json& body, const std::string& where);
void check_lane(const nlohmann::json& lane, const std::string& where);

}  // namespace samba::verify
