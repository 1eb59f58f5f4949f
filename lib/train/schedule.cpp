#include "samba/train/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/numerics/float32.h"
#include "samba/train/wide_integer.h"

namespace samba {

namespace {

using Json = nlohmann::json;

// A non-negative float32 as mantissa * 2^exponent with an integer mantissa below 2^24.
struct Decomposed {
  std::uint64_t mantissa;
  int exponent;
};

Decomposed decompose(float value) {
  const std::uint32_t bits = to_bits(value);
  const auto field = static_cast<int>((bits & kExponentMask) >> 23);
  if (field == 0) return {bits & kMantissaMask, -149};
  return {(bits & kMantissaMask) | 0x00800000U, field - 150};
}

// The float32 nearest (value + rest) * 2^unit, ties to even; 0 <= rest < 1, `inexact` says rest > 0. What rounds below
// 2^-126 is +0. `value` has more than 24 bits or an exact end.
float nearest(const WideInteger& value, bool inexact, int unit) {
  const int length = value.bit_length();
  if (length == 0) return 0.0F;
  const int dropped = std::max(length - 24, 0);
  std::uint64_t mantissa = value.shifted_right(dropped).low64();
  if (dropped > 0 && value.bit(dropped - 1)) {
    const WideInteger half = WideInteger(1).shifted_left(dropped - 1);
    const WideInteger tail = value - WideInteger(mantissa).shifted_left(dropped);
    const bool above_half = inexact || !(tail == half);
    if (above_half || (mantissa & 1U) != 0) ++mantissa;
  }
  return flush(static_cast<float>(std::ldexp(static_cast<double>(mantissa), unit + dropped)));
}

// Both learning rates as integers in a common unit. At most 24 + 253 bits.
struct CommonUnit {
  CommonUnit(float peak_lr, float min_lr) {
    const Decomposed a = decompose(peak_lr);
    const Decomposed b = decompose(min_lr);
    unit = a.mantissa == 0 ? b.exponent : b.mantissa == 0 ? a.exponent : std::min(a.exponent, b.exponent);
    if (a.mantissa != 0) peak = WideInteger(a.mantissa).shifted_left(a.exponent - unit);
    if (b.mantissa != 0) min = WideInteger(b.mantissa).shifted_left(b.exponent - unit);
  }
  WideInteger peak, min;
  int unit = 0;
};

// (peak * peak_weight + min * min_weight) / divisor, correctly rounded. 277 + 64 + 1 + 96 bits at most.
float weighted(float peak, std::uint64_t peak_weight, float min, std::uint64_t min_weight, std::uint64_t divisor) {
  constexpr int kExtra = 96;  // the quotient by a 64-bit divisor keeps at least 33 bits
  const CommonUnit common(peak, min);
  const WideInteger sum = common.peak * WideInteger(peak_weight) + common.min * WideInteger(min_weight);
  std::uint64_t rest = 0;
  const WideInteger quotient = sum.shifted_left(kExtra).divided_by(divisor, rest);
  return nearest(quotient, rest != 0, common.unit - kExtra);
}

// Fixed point with kFraction bits behind the point.
constexpr int kFraction = 320;

WideInteger fixed_pi() {
  // 3.243F6A88... in hexadecimal, 80 digits behind the point.
  constexpr std::array<std::uint32_t, 11> kWords = {0x00000003U, 0x243F6A88U, 0x85A308D3U, 0x13198A2EU,
                                                    0x03707344U, 0xA4093822U, 0x299F31D0U, 0x082EFA98U,
                                                    0xEC4E6C89U, 0x452821E6U, 0x38D01377U};
  WideInteger pi;
  for (const std::uint32_t word : kWords) pi = pi.shifted_left(32) + WideInteger(word);
  return pi;
}

WideInteger fixed_product(const WideInteger& a, const WideInteger& b) { return (a * b).shifted_right(kFraction); }

// sin(x)^2 for x in [0, pi/4]: the Taylor series until its terms vanish. Below 2^8 units of error.
WideInteger sine_squared(const WideInteger& x) {
  const WideInteger square = fixed_product(x, x);
  WideInteger sum = x;
  WideInteger term = x;
  std::uint64_t rest = 0;
  for (std::uint64_t n = 1; term.bit_length() > 0; ++n) {
    term = fixed_product(term, square).divided_by((2 * n) * (2 * n + 1), rest);
    sum = n % 2 == 1 ? sum - term : sum + term;
  }
  return fixed_product(sum, sum);
}

// min + (peak - min) * (1 + cos(pi k / n)) / 2 = peak * cos^2(pi k / 2n) + min * sin^2(pi k / 2n), 0 < k < n.
float cosine(float peak, float min, std::uint64_t k, std::uint64_t n) {
  if (peak == min) return flush(peak);
  // The rational values of the cosine; every other value is irrational and so never halfway between two floats.
  if (k == n - k) return weighted(peak, 1, min, 1, 2);
  if (k <= n / 3 && 3 * k == n) return weighted(peak, 3, min, 1, 4);
  if (n - k <= n / 3 && 3 * (n - k) == n) return weighted(peak, 1, min, 3, 4);

  const bool near_peak = k < n - k;
  std::uint64_t rest = 0;
  const WideInteger angle =
      (fixed_pi() * WideInteger(near_peak ? k : n - k)).divided_by(n, rest).shifted_right(1);  // at most pi/4
  const WideInteger small = sine_squared(angle);
  const WideInteger large = WideInteger(1).shifted_left(kFraction) - small;
  const CommonUnit common(peak, min);
  const WideInteger value =
      near_peak ? common.peak * large + common.min * small : common.peak * small + common.min * large;
  const WideInteger error = (common.peak + common.min).shifted_left(10);
  const float low = nearest(value - error, true, common.unit - kFraction);
  const float high = nearest(value + error, true, common.unit - kFraction);
  if (low != high) throw Error(ErrorKind::internal, "a learning rate is too close to a rounding border");
  return low;
}

float checked_rate(const char* name, double value) {
  const auto rounded = static_cast<float>(value);
  if (!(rounded >= 0.0F) || std::isinf(rounded)) {
    refuse_value(std::string("schedule ") + name + " must be finite and at least 0, got " +
                 (std::isnan(value) ? "nan" : Json(value).dump()));
  }
  return rounded == 0.0F ? 0.0F : rounded;
}

constexpr std::array<std::string_view, 3> kKindNames = {"constant", "linear", "cosine"};

ScheduleKind schedule_kind(const std::string& name) {
  for (std::size_t i = 0; i < kKindNames.size(); ++i) {
    if (name == kKindNames[i]) return static_cast<ScheduleKind>(i);
  }
  refuse_value("schedule kind must be \"constant\", \"linear\" or \"cosine\", got \"" + name + "\"");
}

}  // namespace

Schedule::Schedule(const ScheduleFields& fields)
    : kind_(schedule_kind(fields.kind)),
      peak_lr_(checked_rate("peak_lr", fields.peak_lr)),
      warmup_steps_(fields.warmup_steps) {
  if (warmup_steps_ < 0) {
    refuse_value("schedule warmup_steps must be at least 0, got " + std::to_string(warmup_steps_));
  }
  if (kind_ == ScheduleKind::constant) return;  // has no end
  min_lr_ = checked_rate("min_lr", fields.min_lr);
  total_steps_ = fields.total_steps;
  if (total_steps_ && *total_steps_ < std::max<Index>(1, warmup_steps_)) {
    refuse_value("schedule total_steps must be at least 1 and at least warmup_steps, got total_steps " +
                 std::to_string(*total_steps_) + ", warmup_steps " + std::to_string(warmup_steps_));
  }
}

float Schedule::at(Index t) const {
  const FloatScope float_scope;
  if (t < 1) refuse_value("a schedule's step is one-based, got " + std::to_string(t));
  if (t <= warmup_steps_) {
    return weighted(peak_lr_, static_cast<std::uint64_t>(t), 0.0F, 0, static_cast<std::uint64_t>(warmup_steps_));
  }
  if (kind_ == ScheduleKind::constant || !total_steps_) return flush(peak_lr_);
  if (t >= *total_steps_) return flush(min_lr_);
  const auto k = static_cast<std::uint64_t>(t - warmup_steps_);
  const auto n = static_cast<std::uint64_t>(*total_steps_ - warmup_steps_);
  if (kind_ == ScheduleKind::linear) return weighted(peak_lr_, n - k, min_lr_, k, n);
  return cosine(peak_lr_, min_lr_, k, n);
}

Json Schedule::to_json() const {
  return {{"kind", kKindNames[static_cast<std::size_t>(kind_)]},
          {"peak_lr", static_cast<double>(peak_lr_)},
          {"min_lr", static_cast<double>(min_lr_)},
          {"warmup_steps", warmup_steps_},
          {"total_steps", total_steps_ ? Json(*total_steps_) : Json()}};
}

Schedule schedule_from_json(const Json& object, ScheduleKeys keys) {
  if (!object.is_object()) refuse_type("a schedule must be an object, got " + std::string(object.type_name()));
  for (const auto& [key, value] : object.items()) {
    constexpr std::array<std::string_view, 5> kKeys = {"kind", "min_lr", "peak_lr", "total_steps", "warmup_steps"};
    if (keys == ScheduleKeys::user && std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
      refuse_value("unknown schedule key \"" + key +
                   "\"; the keys are kind, min_lr, peak_lr, total_steps, warmup_steps");
    }
  }
  const auto find = [&](const char* name, bool required) -> const Json* {
    const auto found = object.find(name);
    if (found != object.end()) return &*found;
    if (required || keys == ScheduleKeys::checkpoint) refuse_value(std::string("schedule ") + name + " is missing");
    return nullptr;
  };
  const auto refuse = [](const char* name, const char* accepted, const Json& given) {
    refuse_type(std::string("schedule ") + name + " must be " + accepted + ", got " + given.dump());
  };
  const auto number = [&](const char* name, bool required, double& to) {
    const Json* value = find(name, required);
    if (value == nullptr) return;
    if (!value->is_number()) refuse(name, "a number", *value);
    to = value->get<double>();
  };
  const auto integer = [&](const char* name, const Json& value) {
    if (!value.is_number_integer()) refuse(name, "an integer", value);
    if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
      refuse_value(std::string("schedule ") + name + " is too large: " + value.dump());
    }
    return value.get<Index>();
  };
  ScheduleFields fields;
  const Json& kind = *find("kind", true);
  if (!kind.is_string()) refuse("kind", "a name", kind);
  fields.kind = kind.get<std::string>();
  number("peak_lr", true, fields.peak_lr);
  number("min_lr", false, fields.min_lr);
  if (const Json* warmup = find("warmup_steps", false)) fields.warmup_steps = integer("warmup_steps", *warmup);
  if (const Json* total = find("total_steps", false); total != nullptr && !total->is_null()) {
    fields.total_steps = integer("total_steps", *total);
  }
  return Schedule(fields);
}

}  // namespace samba
