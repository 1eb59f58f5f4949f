// JSON objects that people write, read by name. Every refusal says where: a JSON pointer, what was given, what is
// accepted; an unknown key comes with the nearest known name.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace samba {

// JSON text -> value. Refused (Error(value)): text that is not JSON, a key given twice. `source` names the text.
nlohmann::json parse_json(const std::string& text, const std::string& source);

// The value as it is shown in messages: JSON text, cut when long.
std::string shown(const nlohmann::json& value);

class JsonFields {
 public:
  // `value` must be an object that has no other keys than `known`. It must outlive this.
  JsonFields(const nlohmann::json& value, std::string pointer, std::vector<std::string> known);

  const std::string& pointer() const { return pointer_; }
  std::string pointer_to(const std::string& name) const { return pointer_ + "/" + name; }

  bool has(const std::string& name) const;  // given and not null
  const nlohmann::json& required(const std::string& name) const;
  // The value or null.
  const nlohmann::json& get(const std::string& name) const;

  // An absent field gives `fallback`; null does too where a `fallback` may stand for "none".
  std::int64_t integer(const std::string& name, std::optional<std::int64_t> fallback, std::int64_t least,
                       std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;
  std::uint64_t unsigned_integer(const std::string& name, std::uint64_t fallback) const;
  double number(const std::string& name, std::optional<double> fallback) const;
  bool boolean(const std::string& name, bool fallback) const;
  std::string text(const std::string& name, const std::string& fallback) const;
  // One of `accepted`.
  std::string choice(const std::string& name, const std::string& fallback,
                     const std::vector<std::string>& accepted) const;

  // Error(value): "<pointer>/<name>: must be <accepted>, got <value>"
  [[noreturn]] void refuse(const std::string& name, const std::string& accepted) const;

 private:
  const nlohmann::json& value_;
  std::string pointer_;
};

// "<pointer>: must be one of a, b, got "c"; did you mean a?"
[[noreturn]] void refuse_choice(const std::string& pointer, const nlohmann::json& value,
                                const std::vector<std::string>& accepted);

}  // namespace samba
