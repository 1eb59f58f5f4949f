#include "samba/formats/canonical_json.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "samba/core/error.h"

namespace samba {

namespace {

using Json = nlohmann::json;

void append_unit(std::string& out, std::uint32_t unit) {
  char text[16];
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

// The letter of a short escape, or 0.
char short_escape(std::uint32_t point) {
  switch (point) {
    case '\b':
      return 'b';
    case '\f':
      return 'f';
    case '\n':
      return 'n';
    case '\r':
      return 'r';
    case '\t':
      return 't';
    default:
      return 0;
  }
}

void append_text(std::string& out, std::string_view text, ControlEscapes escapes) {
  out += '"';
  for (std::size_t position = 0; position < text.size();) {
    const std::uint32_t point = next_code_point(text, position);
    if (point == '"' || point == '\\') {
      out += '\\';
      out += static_cast<char>(point);
    } else if (escapes == ControlEscapes::short_forms && short_escape(point) != 0) {
      out += '\\';
      out += short_escape(point);
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

void append_value(std::string& out, const Json& value, ControlEscapes escapes, int depth) {
  if (depth > kDeepestJson) refuse_value("JSON nested deeper than " + std::to_string(kDeepestJson) + " levels");
  const char* separator = "";
  switch (value.type()) {
    case Json::value_t::object:
      out += '{';
      for (const auto& [key, item] : value.items()) {  // a map: sorted by bytes, which for UTF-8 is by code point
        out += separator;
        append_text(out, key, escapes);
        out += ':';
        append_value(out, item, escapes, depth + 1);
        separator = ",";
      }
      out += '}';
      return;
    case Json::value_t::array:
      out += '[';
      for (const Json& item : value) {
        out += separator;
        append_value(out, item, escapes, depth + 1);
        separator = ",";
      }
      out += ']';
      return;
    case Json::value_t::string:
      append_text(out, value.get_ref<const std::string&>(), escapes);
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

std::string canonical_json(const Json& value, ControlEscapes escapes) {
  std::string text;
  append_value(text, value, escapes, 0);
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
