// What the readers of checkpoint states share (state_dictionary.h, model_state.h): fields of JSON objects that a file
// holds, refused as Error(corrupt) of a class.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "samba/numerics/generator.h"
#include "samba/train/optimizer.h"

namespace samba::state_fields {

// "FILE cannot be loaded (CLASS): REASON"
[[noreturn]] void refuse(const std::string& source, const char* error_class, const std::string& reason);

// An integer in [0, most]. The library's own comparisons take integers above 2^63 for negative ones.
bool is_count(const nlohmann::json& value, std::uint64_t most);

// The member, or null when there is none.
const nlohmann::json& member(const nlohmann::json& object, const char* name);

// What a message shows of a value: a short text, not a screenful.
std::string shown(const nlohmann::json& value);
// The same of a member that may be absent.
std::string shown(const nlohmann::json& object, const char* name);

// A number of `optimizer`; class optimizer.
double number(const nlohmann::json& optimizer, const char* name, const std::string& source);
// lr, weight_decay, max_norm and accumulation_steps of `optimizer` into `settings`; class optimizer.
void parse_common_settings(const nlohmann::json& optimizer, const std::string& source, OptimizerSettings& settings);
// check_settings; class optimizer.
void require_settings(const OptimizerSettings& settings, const std::string& source);

// {"counter", "seed"}; class rng.
GeneratorState parse_generator(const nlohmann::json& rng, const std::string& source);

// null, or the five keys of a schedule; class schedule.
std::optional<Schedule> parse_schedule(const nlohmann::json& schedule, const std::string& source);

}  // namespace samba::state_fields
