#include "samba/core/json_fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "samba/core/error.h"
#include "samba/core/json_limits.h"
#include "samba/core/names.h"

namespace samba {

namespace {

constexpr std::size_t kLongestShown = 80;

const nlohmann::json kNull = nullptr;

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

nlohmann::json parse_json(const std::string& text, const std::string& source) {
  std::string fault;
  nlohmann::json value = parse_bounded(text, fault);
  if (!value.is_discarded()) return value;
  if (fault.starts_with("it is not JSON")) refuse_value(source + fault.substr(2));
  refuse_value(source + ": " + fault);
}

std::string shown(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kLongestShown) text = text.substr(0, kLongestShown) + "...";
  return text;
}

JsonFields::JsonFields(const nlohmann::json& value, std::string pointer, std::vector<std::string> known)
    : value_(value), pointer_(std::move(pointer)) {
  if (!value.is_object()) {
    refuse_value((pointer_.empty() ? "the config" : pointer_) + ": must be an object, got " + shown(value));
  }
  for (const auto& [key, unused] : value.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string nearest = nearest_name(key, known);
    refuse_value(pointer_ + "/" + key + ": unknown key; " +
                 (nearest.empty() ? "known: " + joined(known) : "did you mean \"" + nearest + "\"?"));
  }
}

bool JsonFields::has(const std::string& name) const {
  const auto found = value_.find(name);
  return found != value_.end() && !found->is_null();
}

const nlohmann::json& JsonFields::get(const std::string& name) const {
  const auto found = value_.find(name);
  return found == value_.end() ? kNull : *found;
}

const nlohmann::json& JsonFields::required(const std::string& name) const {
  const auto found = value_.find(name);
  if (found == value_.end()) refuse_value(pointer_to(name) + ": is required");
  return *found;
}

void JsonFields::refuse(const std::string& name, const std::string& accepted) const {
  refuse_value(pointer_to(name) + ": must be " + accepted + ", got " + shown(get(name)));
}

std::int64_t JsonFields::integer(const std::string& name, std::optional<std::int64_t> fallback, std::int64_t least,
                                 std::int64_t most) const {
  if (!fallback.has_value()) required(name);
  const auto found = value_.find(name);
  if (found == value_.end()) return *fallback;
  const std::string accepted =
      least == 1 && most == std::numeric_limits<std::int64_t>::max()
          ? "a positive integer"
          : "an integer >= " + std::to_string(least) +
                (most == std::numeric_limits<std::int64_t>::max() ? "" : " and <= " + std::to_string(most));
  if (!found->is_number_integer()) refuse(name, accepted);
  if (found->is_number_unsigned() &&
      found->get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    refuse(name, accepted);
  }
  const auto value = found->get<std::int64_t>();
  if (value < least || value > most) refuse(name, accepted);
  return value;
}

std::uint64_t JsonFields::unsigned_integer(const std::string& name, std::uint64_t fallback) const {
  const auto found = value_.find(name);
  if (found == value_.end()) return fallback;
  if (!found->is_number_integer() || (!found->is_number_unsigned() && found->get<std::int64_t>() < 0)) {
    refuse(name, "an integer from 0 to 2^64-1");
  }
  return found->get<std::uint64_t>();
}

double JsonFields::number(const std::string& name, std::optional<double> fallback) const {
  if (!fallback.has_value()) required(name);
  const auto found = value_.find(name);
  if (found == value_.end()) return *fallback;
  if (!found->is_number()) refuse(name, "a number");
  const auto value = found->get<double>();
  if (!std::isfinite(value)) refuse(name, "a finite number");
  return value;
}

bool JsonFields::boolean(const std::string& name, bool fallback) const {
  const auto found = value_.find(name);
  if (found == value_.end()) return fallback;
  if (!found->is_boolean()) refuse(name, "true or false");
  return found->get<bool>();
}

std::string JsonFields::text(const std::string& name, const std::string& fallback) const {
  const auto found = value_.find(name);
  if (found == value_.end()) return fallback;
  if (!found->is_string()) refuse(name, "a text");
  return found->get<std::string>();
}

std::string JsonFields::choice(const std::string& name, const std::string& fallback,
                               const std::vector<std::string>& accepted) const {
  const auto found = value_.find(name);
  if (found == value_.end()) return fallback;
  if (!found->is_string() || std::find(accepted.begin(), accepted.end(), found->get<std::string>()) == accepted.end()) {
    refuse_choice(pointer_to(name), *found, accepted);
  }
  return found->get<std::string>();
}

void refuse_choice(const std::string& pointer, const nlohmann::json& value, const std::vector<std::string>& accepted) {
  std::string message = pointer + ": must be one of " + joined(accepted) + ", got " + shown(value);
  if (value.is_string()) {
    const std::string nearest = nearest_name(value.get<std::string>(), accepted);
    if (!nearest.empty()) message += "; did you mean \"" + nearest + "\"?";
  }
  refuse_value(message);
}

}  // namespace samba
