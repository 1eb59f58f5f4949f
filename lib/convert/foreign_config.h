// The configuration of a model of another program, read by name. Every field is one of: read, without a meaning for the
// arithmetic, or unknown. An unknown field that is set to something is refused, since it may change what the model
// computes.
//
// Refusals are Error(value) "FILE: FIELD is VALUE; ...".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "samba/core/array.h"
#include "samba/core/files.h"

namespace samba {

// A JSON file as Python writes it: Infinity, -Infinity and NaN outside of strings, and {"__float__": "Infinity"},
// become the strings "inf", "-inf" and "nan". Error(corrupt), class "json", for text that is not JSON or a key given
// twice.
nlohmann::json read_foreign_json(const Path& path);
nlohmann::json parse_foreign_json(std::string_view text, const std::string& source);

class ForeignConfig {
 public:
  // `object` must be a JSON object and outlive this; `source` is the file, with "ssm_cfg." for an object inside.
  ForeignConfig(const nlohmann::json& object, std::string source, std::string prefix = "");

  bool has(const std::string& name) const;      // given and not null
  bool is_null(const std::string& name) const;  // given as null
  // The value, or null; it counts as read.
  const nlohmann::json& get(const std::string& name);

  // Given and not null, else `fallback`; without one the field is required.
  Index count(const std::string& name, std::optional<Index> fallback);  // an integer from 1 to 2^31 - 1
  double number(const std::string& name, std::optional<double> fallback);
  bool flag(const std::string& name, bool fallback);
  std::string text(const std::string& name, const std::string& fallback);

  // A field that samba has one value for: absent, null, or equal to it.
  void must_be(const std::string& name, const nlohmann::json& value);
  // Fields that do not change what the model computes for given weights.
  void ignore(std::initializer_list<std::string_view> names);

  // Refuses fields that nobody asked for, unless they are null, false or empty, or their name begins with "_".
  void finish() const;

  [[noreturn]] void refuse(const std::string& name, const std::string& accepted) const;
  const std::string& source() const { return source_; }

 private:
  const nlohmann::json& object_;
  std::string source_;
  std::string prefix_;
  std::set<std::string> known_;
};

}  // namespace samba
