#include "samba/core/numbers.h"

#include <charconv>
#include <cstddef>
#include <cstdint>

namespace samba {

namespace {

// Whether decimal text beyond the range of binary numbers is large (and not tiny): where its first digit stands.
bool is_large(std::string_view text) {
  const std::size_t mark = text.find_first_of("eE");
  const std::string_view digits = text.substr(0, mark);
  std::int64_t exponent = 0;
  if (mark != std::string_view::npos) {
    std::string_view written = text.substr(mark + 1);
    if (written.starts_with('+')) written.remove_prefix(1);
    const auto [end, error] = std::from_chars(written.data(), written.data() + written.size(), exponent);
    if (error == std::errc::result_out_of_range) return !written.starts_with('-');
  }
  const std::size_t point = digits.find('.');
  const std::size_t whole_end = point == std::string_view::npos ? digits.size() : point;
  const std::size_t first = digits.find_first_of("123456789");
  const auto place = static_cast<std::int64_t>(whole_end) - static_cast<std::int64_t>(first);
  return exponent > -place;  // the sum may not fit
}

template <class Number>
NumberFault read(std::string_view text, Number& value) {
  const std::string_view magnitude = text.starts_with('-') ? text.substr(1) : text;
  if (magnitude.empty() || (magnitude[0] != '.' && (magnitude[0] < '0' || magnitude[0] > '9'))) {
    return NumberFault::syntax;  // from_chars takes "inf" and "nan"
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size() || error == std::errc::invalid_argument) return NumberFault::syntax;
  if (error == std::errc::result_out_of_range) {
    if (is_large(magnitude)) return NumberFault::overflow;
    value = text.starts_with('-') ? Number{-0.0} : Number{0.0};
  }
  return NumberFault::none;
}

}  // namespace

NumberFault read_number(std::string_view text, double& value) { return read(text, value); }
NumberFault read_number(std::string_view text, float& value) { return read(text, value); }

std::string number_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace samba
