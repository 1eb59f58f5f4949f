// The rules of a data_schedule (spec 50 section B5).
#include <cmath>

#include "samba/core/error.h"
#include "samba/formats/canonical_json.h"
#include "samba/train/mlp_state.h"

namespace samba {

namespace {

using nlohmann::json;

constexpr std::size_t kMostValues = 128;
constexpr int kDeepest = 8;
constexpr std::size_t kLongestText = 2048;  // code points
constexpr std::size_t kMostBits = 4096;
constexpr std::size_t kMostBytes = 2048;
constexpr std::size_t kMostDigits = 4300;  // of an integer in JSON text, as the reference's reader takes them

std::size_t code_points(const std::string& text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

void check_text(const std::string& text) {
  if (code_points(text) > kLongestText) {
    refuse_value("data_schedule string is too large: " + std::to_string(code_points(text)) + " characters, at most " +
                 std::to_string(kLongestText));
  }
}

// The bits of a decimal number's magnitude.
std::size_t bit_length(const std::vector<std::uint8_t>& digits) {
  std::vector<std::uint32_t> limbs;
  for (const std::uint8_t digit : digits) {
    if (digit == '-') continue;
    std::uint64_t carry = static_cast<std::uint64_t>(digit - '0');
    for (std::uint32_t& limb : limbs) {
      carry += std::uint64_t{limb} * 10;
      limb = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
    if (carry != 0) limbs.push_back(static_cast<std::uint32_t>(carry));
  }
  return limbs.empty() ? 0 : 32 * (limbs.size() - 1) + static_cast<std::size_t>(std::bit_width(limbs.back()));
}

// `depth` is 0 for the schedule itself; `values` counts what was seen so far.
void check_value(const json& value, int depth, std::size_t& values) {
  if (++values > kMostValues || depth > kDeepest || value.size() > kMostValues) {
    refuse_value("data_schedule is too complex: at most " + std::to_string(kMostValues) + " values and " +
                 std::to_string(kDeepest) + " levels");
  }
  switch (value.type()) {
    case json::value_t::object:
      for (const auto& [key, item] : value.items()) {
        check_text(key);
        check_value(item, depth + 1, values);
      }
      return;
    case json::value_t::array:
      for (const json& item : value) check_value(item, depth + 1, values);
      return;
    case json::value_t::string:
      return check_text(value.get_ref<const std::string&>());
    case json::value_t::number_float:
      if (!std::isfinite(value.get<double>())) refuse_value("data_schedule must be finite JSON");
      return;
    case json::value_t::binary:
      if (bit_length(value.get_binary()) > kMostBits) {
        refuse_value("data_schedule integer is too large: at most " + std::to_string(kMostBits) + " bits");
      }
      return;
    default:
      return;
  }
}

}  // namespace

void check_data_schedule(const json& schedule) {
  if (!schedule.is_object() || schedule.empty()) refuse_value("data_schedule must be a nonempty JSON object");
  std::size_t values = 0;
  check_value(schedule, 0, values);
  const std::size_t bytes = canonical_json(schedule, ControlEscapes::short_forms).size();
  if (bytes > kMostBytes) {
    refuse_value("data_schedule exceeds " + std::to_string(kMostBytes) + " bytes: its canonical JSON has " +
                 std::to_string(bytes));
  }
}

json parse_data_schedule(const std::string& text) {
  try {
    return parse_json(text, JsonReadOptions{.lone_surrogates = true, .most_digits = kMostDigits});
  } catch (const Error& error) {
    refuse_value(std::string("data_schedule is ") + error.what());
  }
}

}  // namespace samba
