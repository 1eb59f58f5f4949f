#include "samba/formats/canonical_json.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <set>
#include <vector>

#include "samba/core/error.h"

namespace samba {

namespace {

using Json = nlohmann::json;

// Builds the value and refuses what nlohmann's own reader would let pass.
class StrictBuilder final : public nlohmann::json_sax<Json> {
 public:
  Json take() { return std::move(root_); }
  const std::string& fault() const { return fault_; }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") == std::string::npos) {
      return put(Json::binary({text.begin(), text.end()}, kBigIntegerSubtype));
    }
    if (!std::isfinite(value)) return fail("the number " + text + " is beyond binary64");
    return put(value);
  }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return fail("binary values are no JSON"); }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool key(string_t& name) override {
    if (open_.back()->contains(name)) return fail("the key " + Json(name).dump() + " is there twice");
    key_ = std::move(name);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // Kept is the reason alone: before it the message speaks of the library, behind it it quotes the file's bytes.
    std::string text = error.what();
    if (const std::size_t reason = text.find(" - "); reason != std::string::npos) text.erase(0, reason + 3);
    if (const std::size_t quote = text.find("; last read"); quote != std::string::npos) text.erase(quote);
    return fail(text + " at byte " + std::to_string(position));
  }

 private:
  Json* place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == kDeepestJson) return fail("nested deeper than " + std::to_string(kDeepestJson) + " levels");
    open_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  bool fail(std::string reason) {
    fault_ = std::move(reason);
    return false;
  }

  Json root_;
  std::vector<Json*> open_;
  std::string key_;
  std::string fault_;
};

void append_unit(std::string& out, std::uint32_t unit) {
  char text[8];
  std::snprintf(text, sizeof text, "\\u%04x", unit);
  out += text;
}

// The code point that starts at `position`, which moves behind it.
std::uint32_t next_code_point(std::string_view text, std::size_t& position) {
  const auto byte = [&](std::size_t at) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at])); };
  const std::uint32_t lead = byte(position);
  const std::size_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
  if (length == 0 || position + length > text.size()) refuse_value("text that is not UTF-8 has no canonical JSON");
  std::uint32_t point = length == 1 ? lead : lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const std::uint32_t next = byte(position + i);
    if (next >> 6 != 2) refuse_value("text that is not UTF-8 has no canonical JSON");
    point = (point << 6) | (next & 0x3FU);
  }
  position += length;
  return point;
}

void append_text(std::string& out, std::string_view text) {
  out += '"';
  for (std::size_t position = 0; position < text.size();) {
    const std::uint32_t point = next_code_point(text, position);
    if (point == '"' || point == '\\') {
      out += '\\';
      out += static_cast<char>(point);
    } else if (point >= 0x20 && point < 0x7F) {
      out += static_cast<char>(point);
    } else if (point < 0x10000) {
      append_unit(out, point);
    } else {
      append_unit(out, 0xD800U + ((point - 0x10000U) >> 10));
      append_unit(out, 0xDC00U + ((point - 0x10000U) & 0x3FFU));
    }
  }
  out += '"';
}

void append_value(std::string& out, const Json& value, int depth) {
  if (depth > kDeepestJson) refuse_value("JSON nested deeper than " + std::to_string(kDeepestJson) + " levels");
  const char* separator = "";
  switch (value.type()) {
    case Json::value_t::object:
      out += '{';
      for (const auto& [key, item] : value.items()) {  // a map: sorted by bytes, which for UTF-8 is by code point
        out += separator;
        append_text(out, key);
        out += ':';
        append_value(out, item, depth + 1);
        separator = ",";
      }
      out += '}';
      return;
    case Json::value_t::array:
      out += '[';
      for (const Json& item : value) {
        out += separator;
        append_value(out, item, depth + 1);
        separator = ",";
      }
      out += ']';
      return;
    case Json::value_t::string:
      append_text(out, value.get_ref<const std::string&>());
      return;
    case Json::value_t::number_float:
      if (!std::isfinite(value.get<double>())) refuse_value("NaN and infinity have no JSON text");
      out += shortest_number(value.get<double>());
      return;
    case Json::value_t::binary:
      if (!value.get_binary().has_subtype() || value.get_binary().subtype() != kBigIntegerSubtype) break;
      out.append(value.get_binary().begin(), value.get_binary().end());
      return;
    case Json::value_t::null:
    case Json::value_t::boolean:
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      out += value.dump();
      return;
    case Json::value_t::discarded:
      break;
  }
  throw Error(ErrorKind::internal, "a value without JSON text");
}

}  // namespace

Json parse_json(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) refuse_value("not JSON: it starts with a byte order mark");
  StrictBuilder builder;
  if (!Json::sax_parse(text, &builder)) refuse_value("not JSON: " + builder.fault());
  return builder.take();
}

std::string canonical_json(const Json& value) {
  std::string text;
  append_value(text, value, 0);
  return text;
}

std::string shortest_number(double value) {
  char buffer[40];
  const std::to_chars_result result =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<std::size_t>(result.ptr - buffer));  // -d.ddde-05
  const bool negative = text.front() == '-';
  const std::size_t mark = text.find('e');
  std::string digits(text.substr(negative ? 1 : 0, mark - (negative ? 1 : 0)));
  std::erase(digits, '.');
  const std::size_t first_digit = mark + (text[mark + 1] == '+' ? 2 : 1);
  int exponent = 0;
  std::from_chars(text.data() + first_digit, text.data() + text.size(), exponent);

  std::string number = negative ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    number += digits.substr(0, 1);
    if (digits.size() > 1) number += "." + digits.substr(1);
    return number + std::string(text.substr(mark));  // to_chars writes the sign and two digits at least
  }
  if (exponent < 0) return number + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return number + digits + std::string(whole - digits.size(), '0') + ".0";
  return number + digits.substr(0, whole) + "." + digits.substr(whole);
}

bool is_integer(const Json& value) { return value.is_number_integer(); }

}  // namespace samba
