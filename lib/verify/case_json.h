// Inside lib/verify: what the reports of --json say of one case.
#pragma once

#include <nlohmann/json.hpp>

#include "samba/verify/verify.h"

namespace samba::verify {

nlohmann::json case_json(const CaseResult& result);

}  // namespace samba::verify
