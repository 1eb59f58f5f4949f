#include "samba/convert/foreign_config.h"

#include <cmath>
#include <utility>

#include "samba/core/error.h"
#include "samba/core/json_fields.h"

namespace samba {

namespace {

using nlohmann::json;

constexpr Index kMostCount = 2147483647;

// Puts strings in the place of the three words that Python writes and JSON does not have.
std::string with_words_quoted(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (inside) {
      result += c;
      if (c == '\\' && i + 1 < text.size()) result += text[++i];
      inside = c != '"';
      continue;
    }
    inside = c == '"';
    bool replaced = false;
    for (const auto& [word, quoted] : {std::pair<std::string_view, std::string_view>{"-Infinity", "\"-inf\""},
                                       {"Infinity", "\"inf\""},
                                       {"NaN", "\"nan\""}}) {
      if (replaced || !text.substr(i).starts_with(word)) continue;
      result += quoted;
      i += word.size() - 1;
      replaced = true;
    }
    if (!replaced) result += c;
  }
  return result;
}

// {"__float__": "Infinity"} -> "inf", everywhere. Objects nest as deep as the parser allows, which has no recursion:
// deeper than this is no configuration.
constexpr int kDeepest = 64;

void plain_floats(json& value, const std::string& source, int depth) {
  if (depth > kDeepest) refuse_corrupt("json", source + " nests deeper than " + std::to_string(kDeepest));
  if (!value.is_structured()) return;
  if (value.is_object() && value.size() == 1 && value.contains("__float__") && value["__float__"].is_string()) {
    const std::string word = value["__float__"].get<std::string>();
    value = word == "Infinity" ? "inf" : word == "-Infinity" ? "-inf" : "nan";
    return;
  }
  for (json& part : value) plain_floats(part, source, depth + 1);
}

const json kNull = nullptr;

bool says_nothing(const json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty()) || value == "";
}

}  // namespace

json parse_foreign_json(std::string_view text, const std::string& source) {
  json value;
  try {
    value = parse_json(with_words_quoted(text), source);
  } catch (const Error& error) {
    refuse_corrupt("json", error.what());
  }
  plain_floats(value, source, 0);
  return value;
}

json read_foreign_json(const Path& path) {
  constexpr std::uint64_t kLargest = std::uint64_t{1} << 26;
  return parse_foreign_json(read_file(path, kLargest), path.string());
}

ForeignConfig::ForeignConfig(const json& object, std::string source, std::string prefix)
    : object_(object), source_(std::move(source)), prefix_(std::move(prefix)) {
  if (!object.is_object()) refuse_value(source_ + ": must hold an object, got " + shown(object));
}

bool ForeignConfig::has(const std::string& name) const {
  const auto found = object_.find(name);
  return found != object_.end() && !found->is_null();
}

bool ForeignConfig::is_null(const std::string& name) const {
  const auto found = object_.find(name);
  return found != object_.end() && found->is_null();
}

const json& ForeignConfig::get(const std::string& name) {
  known_.insert(name);
  return has(name) ? object_.at(name) : kNull;
}

Index ForeignConfig::count(const std::string& name, std::optional<Index> fallback) {
  const json& value = get(name);
  if (value.is_null() && fallback) return *fallback;
  if (!value.is_number_integer() || !(value >= 1) || !(value <= kMostCount)) refuse(name, "an integer of at least 1");
  return value.get<Index>();
}

double ForeignConfig::number(const std::string& name, std::optional<double> fallback) {
  const json& value = get(name);
  if (value.is_null() && fallback) return *fallback;
  if (!value.is_number() || !std::isfinite(value.get<double>())) refuse(name, "a number");
  return value.get<double>();
}

bool ForeignConfig::flag(const std::string& name, bool fallback) {
  const json& value = get(name);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) refuse(name, "true or false");
  return value.get<bool>();
}

std::string ForeignConfig::text(const std::string& name, const std::string& fallback) {
  const json& value = get(name);
  if (value.is_null()) return fallback;
  if (!value.is_string()) refuse(name, "a text");
  return value.get<std::string>();
}

void ForeignConfig::must_be(const std::string& name, const json& value) {
  const json& given = get(name);
  if (!given.is_null() && given != value) refuse(name, shown(value));
}

void ForeignConfig::ignore(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) known_.emplace(name);
}

void ForeignConfig::finish() const {
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name) || name.starts_with("_") || says_nothing(value)) continue;
    refuse_value(source_ + ": the field " + prefix_ + name + " (" + shown(value) +
                 ") is unknown, and may change what the model computes; remove it from a copy of the folder if it "
                 "does not");
  }
}

void ForeignConfig::refuse(const std::string& name, const std::string& accepted) const {
  const auto found = object_.find(name);
  const bool given = found != object_.end();
  refuse_value(source_ + ": " + prefix_ + name + (given ? " is " + shown(*found) : " is missing") +
               "; accepted: " + accepted);
}

}  // namespace samba
