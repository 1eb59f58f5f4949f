// Decimal text -> the nearest binary32 or binary64 number, and back, whatever the locale.
#pragma once

#include <string>
#include <string_view>

namespace samba {

enum class NumberFault { none, syntax, overflow };

// The whole of `text` must be a decimal number: "-1", "2.5", "1e-3". Below the smallest subnormal is a zero of the
// text's sign; beyond the largest finite number is NumberFault::overflow. "inf" and "nan" are no numbers.
NumberFault read_number(std::string_view text, double& value);
NumberFault read_number(std::string_view text, float& value);

// The shortest text that read_number takes for this number.
std::string number_text(double value);

}  // namespace samba
