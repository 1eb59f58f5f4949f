// The one text of a JSON value (spec 62 section 2), and the strict reader.
#include "samba/formats/canonical_json.h"

#include <bit>
#include <catch2/catch.hpp>
#include <charconv>
#include <limits>
#include <random>

#include "samba/core/error.h"

using namespace samba;
using Json = nlohmann::json;

namespace {

void check_refused(const std::string& text, const std::string& reason) {
  INFO(text.substr(0, 80));
  try {
    parse_json(text);
    FAIL_CHECK("was not refused");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::value);
    CHECK_THAT(error.what(), Catch::Contains(reason));
  }
}

}  // namespace

TEST_CASE("doubles are written as the shortest text that reads back, with a point or an exponent") {
  const std::vector<std::pair<double, std::string>> cases = {
      {0.0, "0.0"},
      {-0.0, "-0.0"},
      {1.0, "1.0"},
      {0.5, "0.5"},
      {0.001, "0.001"},
      {0.0001, "0.0001"},
      {0.00001, "1e-05"},
      {0.000012345, "1.2345e-05"},
      {100000.0, "100000.0"},
      {9007199254740993.0, "9007199254740992.0"},
      {1e15, "1000000000000000.0"},
      {1e16, "1e+16"},
      {1.5e16, "1.5e+16"},
      {123456.789, "123456.789"},
      {-2.5e-7, "-2.5e-07"},
      {1e-100, "1e-100"},
      {5e-324, "5e-324"},
      {std::numeric_limits<double>::max(), "1.7976931348623157e+308"},
      {static_cast<double>(1e-5F), "9.999999747378752e-06"},
      {static_cast<double>(0.1F), "0.10000000149011612"}};
  for (const auto& [value, text] : cases) CHECK(shortest_number(value) == text);
}

TEST_CASE("every double's text reads back to the same bits") {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100000; ++i) {
    const auto value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    const std::string text = shortest_number(value);
    double back = 0.0;
    std::from_chars(text.data(), text.data() + text.size(), back);
    if (std::bit_cast<std::uint64_t>(back) != std::bit_cast<std::uint64_t>(value)) FAIL(text);
  }
}

TEST_CASE("keys are sorted by code point, text is ASCII, nothing is spaced") {
  const Json value = parse_json(R"( { "b" : [ 1 , 2.50 , null ] , "a\u00e9" : true, "a" : "\"\\\/\n\u001f\u007f", )"
                                R"("😀": "é", "ｚ": false } )");
  CHECK(canonical_json(value) ==
        "{\"a\":\"\\\"\\\\/\\u000a\\u001f\\u007f\",\"a\\u00e9\":true,\"b\":[1,2.5,null],"
        "\"\\uff5a\":false,\"\\ud83d\\ude00\":\"\\u00e9\"}");
}

TEST_CASE("integers keep every digit") {
  const std::string text = "[18446744073709551615,-9223372036854775808,18446744073709551616,-9223372036854775809,0]";
  const Json value = parse_json(text);
  CHECK(canonical_json(value) == text);
  CHECK(is_integer(value[0]));
  CHECK(is_integer(value[1]));
  CHECK_FALSE(is_integer(value[2]));
  CHECK_FALSE(value[2].is_number());
  CHECK_FALSE(is_integer(value[3]));
}

TEST_CASE("a number with a point or an exponent, and a truth value, are no integers") {
  for (const char* text : {"1.0", "1e3", "true", "\"1\"", "null"}) {
    INFO(text);
    CHECK_FALSE(is_integer(parse_json(text)));
  }
  CHECK(is_integer(parse_json("-1")));
}

TEST_CASE("what no checkpoint may hold is refused with its reason") {
  check_refused("", "not JSON");
  check_refused("{\"a\":1,\"b\":{\"x\":1,\"x\":2}}", "\"x\" is there twice");
  check_refused("{\"a\":1,\"\\u0061\":2}", "\"a\" is there twice");
  check_refused("[NaN]", "not JSON");
  check_refused("[Infinity]", "not JSON");
  check_refused("[-Infinity]", "not JSON");
  check_refused("[1e999]", "not JSON");
  check_refused("{} {}", "not JSON");
  check_refused("{'a':1}", "not JSON");
  check_refused("[1,]", "not JSON");
  check_refused("[\"\xff\"]", "not JSON");
  check_refused("\xEF\xBB\xBF{}", "byte order mark");
  check_refused("\"a\nb\"", "not JSON");
}

TEST_CASE("deep nesting is refused and does not exhaust the stack") {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  CHECK(canonical_json(parse_json(nested(kDeepestJson))) == nested(kDeepestJson));
  check_refused(nested(kDeepestJson + 1), "nested deeper");
  check_refused(std::string(5'000'000, '['), "nested deeper");
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  check_refused(objects, "nested deeper");
}

TEST_CASE("control characters take their short forms where the file wants them") {
  const Json value = parse_json(R"("\b\f\n\r\t\u0000\u001f\u007f\u2028/")");
  CHECK(canonical_json(value, ControlEscapes::short_forms) == R"("\b\f\n\r\t\u0000\u001f\u007f\u2028/")");
  CHECK(canonical_json(value) == R"("\u0008\u000c\u000a\u000d\u0009\u0000\u001f\u007f\u2028/")");
}

TEST_CASE("a lone surrogate is refused, or kept and written back as its escape") {
  const JsonReadOptions lone{.lone_surrogates = true};
  for (const char* text : {R"("\ud800")", R"("\udc00")", R"("\ud800x")", R"("\udc00\ud800")", R"("\ud800A\ud801")",
                           R"("\ud83d\ude00\ud83d")", R"("\ud800\ud83d\ude00")"}) {
    INFO(text);
    check_refused(text, "a lone surrogate");
    CHECK(canonical_json(parse_json(text, lone)) == text);
  }
  CHECK(canonical_json(parse_json(R"({"\uffff":1,"\ud800":2,"\ud83d\ude00":3,"\ue000":4})", lone)) ==
        R"({"\ud800":2,"\ue000":4,"\uffff":1,"\ud83d\ude00":3})");  // by code point
  for (const char* text : {"\"\xed\xa0\x80\"", "\"\xc0\xaf\"", "\"\xf4\x90\x80\x80\"", "\"\xe2\x82\"", "\"\x80\""}) {
    CHECK_THROWS_AS(parse_json(text, lone), Error);
  }
}

TEST_CASE("the kind of a number is decided by its text, its value is the nearest double") {
  CHECK(canonical_json(parse_json("[1,1.0,-0,-0.0,1e0,1E+2,0.5e-1,1e-400,-1e-400,123456789012345678901234567890]")) ==
        "[1,1.0,0,-0.0,1.0,100.0,0.05,0.0,-0.0,123456789012345678901234567890]");
  CHECK(canonical_json(parse_json("[0." + std::string(400, '0') + "1, 1" + std::string(300, '0') + ".0]")) ==
        "[0.0,1e+300]");
  check_refused("1e400", "beyond binary64");
  check_refused("[1" + std::string(400, '0') + ".0]", "beyond binary64");
  check_refused("[-1e99999999999999999999]", "beyond binary64");
  check_refused("10e9223372036854775807", "beyond binary64");
  CHECK(canonical_json(parse_json("[0.01e-9223372036854775808]")) == "[0.0]");
  for (const char* text : {"01", "+1", ".5", "1.", "1e", "-", "0x1", "1e+", "--1", "1.e3", "tru", "nul"}) {
    check_refused(text, "not JSON");
  }
  CHECK_NOTHROW(parse_json("-1234", {.most_digits = 4}));
  CHECK_THROWS_WITH(parse_json("12345", {.most_digits = 4}), Catch::Contains("more than 4 digits"));
}

TEST_CASE("values without JSON text are refused when they are written") {
  CHECK_THROWS_AS(canonical_json(Json(std::numeric_limits<double>::quiet_NaN())), Error);
  CHECK_THROWS_AS(canonical_json(Json{{"a", std::numeric_limits<double>::infinity()}}), Error);
  CHECK_THROWS_AS(canonical_json(Json("\xff")), Error);
}
