// Learning-rate schedules: the float32 nearest the exact value (spec 61 section 4).
#include "samba/train/schedule.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "samba/core/error.h"
#include "samba/numerics/float32.h"
#include "samba/train/wide_integer.h"

using namespace samba;
using Json = nlohmann::json;

namespace {

Schedule make(const std::string& kind, double peak, double min, Index warmup, std::optional<Index> total) {
  return Schedule({kind, peak, min, warmup, total});
}

// |value - numerator / denominator| is at most half the distance to both neighbours of value, in exact arithmetic.
// All numbers are integers times 2^unit.
bool is_nearest(float value, double numerator_units, std::uint64_t denominator, int unit) {
  const auto scaled = [&](float x) { return std::ldexp(static_cast<long double>(x), -unit); };
  const long double target = static_cast<long double>(numerator_units);
  const auto distance = [&](float x) { return std::fabs(scaled(x) * static_cast<long double>(denominator) - target); };
  return distance(value) <= distance(std::nextafter(value, kInfinity)) &&
         distance(value) <= distance(std::nextafter(value, -kInfinity));
}

}  // namespace

TEST_CASE("wide integers add, multiply, shift and divide like 128-bit ones") {
  std::mt19937_64 random(3);
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t a = random() >> (random() % 64), b = (random() >> (random() % 64)) | 1U;
    const auto product = static_cast<unsigned __int128>(a) * b;
    const WideInteger wide = WideInteger(a) * WideInteger(b);
    REQUIRE(wide.low64() == static_cast<std::uint64_t>(product));
    REQUIRE(wide.shifted_right(64).low64() == static_cast<std::uint64_t>(product >> 64));
    const int shift = static_cast<int>(random() % 500);
    REQUIRE(wide.shifted_left(shift).shifted_right(shift) == wide);
    std::uint64_t rest = 1;
    const WideInteger sum = wide.shifted_left(300) + WideInteger(b - 1).shifted_left(300);
    REQUIRE(sum.divided_by(b, rest).bit_length() >= 0);
    REQUIRE((wide + WideInteger(b - 1)).divided_by(b, rest) == WideInteger(a));
    REQUIRE(rest == b - 1);
    REQUIRE(wide - wide == WideInteger());
  }
}

TEST_CASE("warmup and linear decay are the nearest float32 of their rational value") {
  std::mt19937_64 random(5);
  for (int i = 0; i < 20000; ++i) {
    // Learning rates of equal exponent, so that long double holds every product exactly.
    const auto peak = static_cast<std::uint32_t>(0x800000 + random() % 0x800000);
    const auto min = static_cast<std::uint32_t>(0x800000 + random() % 0x800000);
    const int unit = -40;
    const auto warmup = static_cast<Index>(random() % 1000);
    const Index total = warmup + 1 + static_cast<Index>(random() % 100000);
    const Schedule schedule = make("linear", std::ldexp(peak, unit), std::ldexp(min, unit), warmup, total);
    const Index t = 1 + static_cast<Index>(random() % static_cast<std::uint64_t>(total + 2));
    const float value = schedule.at(t);
    INFO(peak << " " << min << " W " << warmup << " T " << total << " t " << t);
    if (t <= warmup) {
      REQUIRE(is_nearest(value, static_cast<double>(peak) * static_cast<double>(t), static_cast<std::uint64_t>(warmup),
                         unit));
    } else if (t < total) {
      const auto k = static_cast<double>(t - warmup), n = static_cast<double>(total - warmup);
      REQUIRE(is_nearest(value, static_cast<double>(peak) * (n - k) + static_cast<double>(min) * k,
                         static_cast<std::uint64_t>(total - warmup), unit));
    } else {
      REQUIRE(value == schedule.min_lr());
    }
  }
}

TEST_CASE("a tie of the rational value goes to even") {
  // peak * 1/2 lies halfway between two floats when the peak is an odd multiple of the smallest normal's last place.
  const float peak = from_bits(0x00800003U);  // (2^23 + 3) * 2^-149
  CHECK(to_bits(make("constant", peak, 0, 1, std::nullopt).at(1)) == 0x00800003U);
  const float odd = std::ldexp(16777215.0F, -60);  // 24 bits; a third of it is exact, a half needs 25 bits
  CHECK(make("constant", odd, 0, 2, std::nullopt).at(1) == std::ldexp(8388607.5F, -60));
  // (3 * 2^23 + 3) / 2 needs 25 bits and lies on a tie: 12582913.5 is between 12582913 and 12582914.
  const Schedule tie = make("linear", 16777215.0 * 0x1p-60, 8388612.0 * 0x1p-60, 0, 2);
  CHECK(tie.at(1) == std::ldexp(12582914.0F, -60));
}

TEST_CASE("cosine values agree with long double to its accuracy and lie between both rates") {
  std::mt19937_64 random(7);
  for (int i = 0; i < 5000; ++i) {
    const double peak = std::ldexp(1.0 + static_cast<double>(random() % 1000) / 999.0, -8);
    const double min = i % 3 == 0 ? 0.0 : peak / 10;
    const Index total = 2 + static_cast<Index>(random() % 1000000);
    const Schedule schedule = make("cosine", peak, min, 0, total);
    const Index t = 1 + static_cast<Index>(random() % static_cast<std::uint64_t>(total));
    const long double angle =
        3.14159265358979323846264338327950288L * static_cast<long double>(t) / (2 * static_cast<long double>(total));
    const long double high = schedule.peak_lr(), low = schedule.min_lr();
    const long double value = high * std::cos(angle) * std::cos(angle) + low * std::sin(angle) * std::sin(angle);
    const float got = schedule.at(t);
    INFO("T " << total << " t " << t);
    // 2^-24 of rounding and a little of the long double's own error.
    REQUIRE(std::fabs(static_cast<long double>(got) - value) <= value * (0x1p-24L + 0x1p-40L) + 0x1p-70L);
  }
}

TEST_CASE("a cosine of very many steps keeps its precision at both ends") {
  const Index total = Index{1} << 62;
  const Schedule schedule = make("cosine", 1.0, 0.0, 0, total);
  CHECK(schedule.at(1) == 1.0F);
  CHECK(schedule.at(total / 2) == 0.5F);
  // cos^2(pi/2 - x) = x^2 for the last step, x = pi / 2^63: 0x1.3bd3ccp+3 * 2^-126, still normal.
  CHECK(schedule.at(total - 1) == static_cast<float>(9.869604401089358 * 0x1p-126));
  CHECK(schedule.at(total) == 0.0F);
}

TEST_CASE("a result below the smallest normal is zero") {
  const Schedule warmup = make("constant", 0x1p-126, 0, 4, std::nullopt);
  CHECK(to_bits(warmup.at(3)) == 0U);
  CHECK(warmup.at(4) == 0x1p-126F);
  CHECK(to_bits(make("constant", 0x1p-130, 0, 0, std::nullopt).at(5)) == 0U);
}

TEST_CASE("a constant schedule drops min_lr and total_steps") {
  const Schedule schedule = make("constant", 0.1, 0.05, 3, 7);
  CHECK(schedule.to_json() == Json({{"kind", "constant"},
                                    {"peak_lr", static_cast<double>(0.1F)},
                                    {"min_lr", 0.0},
                                    {"warmup_steps", 3},
                                    {"total_steps", nullptr}}));
  CHECK(schedule.at(100) == 0.1F);
}

TEST_CASE("bad schedules are refused by the name of the field") {
  const auto refused = [](const char* text, const char* field, ScheduleKeys keys = ScheduleKeys::user) {
    INFO(text);
    CHECK_THROWS_WITH(schedule_from_json(Json::parse(text), keys), Catch::Contains(field));
  };
  refused(R"({"kind": "step", "peak_lr": 1})", "kind");
  refused(R"({"peak_lr": 1})", "kind");
  refused(R"({"kind": "linear"})", "peak_lr");
  refused(R"({"kind": "linear", "peak_lr": -1})", "peak_lr");
  refused(R"({"kind": "linear", "peak_lr": 1e60})", "peak_lr");
  refused(R"({"kind": "linear", "peak_lr": "1"})", "peak_lr");
  refused(R"({"kind": "linear", "peak_lr": 1, "min_lr": -0.5})", "min_lr");
  refused(R"({"kind": "linear", "peak_lr": 1, "warmup_steps": -1})", "warmup_steps");
  refused(R"({"kind": "linear", "peak_lr": 1, "warmup_steps": 1.0})", "warmup_steps");
  refused(R"({"kind": "linear", "peak_lr": 1, "total_steps": 0})", "total_steps");
  refused(R"({"kind": "cosine", "peak_lr": 1, "warmup_steps": 5, "total_steps": 4})", "total_steps");
  refused(R"({"kind": "cosine", "peak_lr": 1, "steps": 4})", "steps");
  refused(R"({"kind": "constant", "peak_lr": 1, "warmup_steps": 0, "total_steps": null})", "min_lr",
          ScheduleKeys::checkpoint);
  CHECK_THROWS_WITH(make("constant", 1, 0, 0, std::nullopt).at(0), Catch::Contains("one-based"));
}
