// Packed weights (spec 50 part A): rounding, expansion, containers, and the names of their parts in files.
#include <catch2/catch.hpp>

#include <algorithm>

#include "bits.h"
#include "samba/core/error.h"
#include "samba/numerics/low_bit.h"
#include "samba/numerics/packed_weight.h"
#include "samba/numerics/philox.h"

namespace samba {
namespace {

constexpr WeightFormat kPacked[] = {WeightFormat::bfloat16, WeightFormat::int8};

enum class Content { any_bits, ordinary };

// A matrix of any bit patterns, or of ordinary values with rows of very different sizes.
Array matrix(Index rows, Index columns, Content content, std::uint32_t seed) {
  Array array = Array::zeros({rows, columns});
  for (std::size_t i = 0; i < array.floats().size(); ++i) {
    const std::uint32_t word = stream_word(seed, 1, i);
    const float row_scale =
        power_of_two(static_cast<std::int32_t>(stream_word(seed, 3, i / static_cast<std::size_t>(columns)) % 40) - 20);
    array.floats()[i] =
        content == Content::any_bits ? from_bits(word) : stream_normal(seed, 2, i, 0.0F, 1.0F) * row_scale;
  }
  return array;
}

bool same_packed(const PackedWeight& a, const PackedWeight& b) {
  const auto same_bytes = [](const Array& x, const Array& y) {  // there may be none
    const auto* bytes = static_cast<const std::byte*>(x.data());
    return x.shape() == y.shape() && x.byte_size() == y.byte_size() &&
           std::equal(bytes, bytes + x.byte_size(), static_cast<const std::byte*>(y.data()));
  };
  return a.format() == b.format() && same_bytes(a.codes(), b.codes()) && same_bytes(a.exponents(), b.exponents());
}

template <class Call>
void check_refused(ErrorKind kind, const std::string& words, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    CHECK_THAT(error.what(), Catch::Contains(words));
    return;
  }
  FAIL("accepted; want a refusal with the words: " + words);
}

}  // namespace

TEST_CASE("every bfloat16 pattern expands to the float32 of the same sign, exponent and leading digits") {
  Array bits(DType::uint16, {256, 256});
  for (std::size_t i = 0; i < 65536; ++i) bits.values<std::uint16_t>()[i] = static_cast<std::uint16_t>(i);
  const Array values = expand(PackedWeight(bits));
  for (std::size_t i = 0; i < 65536; ++i) REQUIRE(to_bits(values.floats()[i]) == i << 16);
  // Packed again: itself, but subnormals become zeros of their sign and a signalling NaN a quiet one.
  const Weight again = pack_one(values, WeightFormat::bfloat16);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const bool subnormal = (i & 0x7F80U) == 0;
    const bool nan = (i & 0x7FFFU) > 0x7F80U;
    const std::uint32_t want = nan ? i | 0x0040U : subnormal ? i & 0x8000U : i;
    REQUIRE(again.packed().bits().values<std::uint16_t>()[i] == want);
  }
}

TEST_CASE("bfloat16 rounds to the nearest, ties to even, and overflows to infinity") {
  CHECK(bfloat16_bits(from_bits(0x3F808000)) == 0x3F80);  // half way, even below
  CHECK(bfloat16_bits(from_bits(0x3F818000)) == 0x3F82);  // half way, even above
  CHECK(bfloat16_bits(from_bits(0x3F808001)) == 0x3F81);
  CHECK(bfloat16_bits(from_bits(0x7F7FFFFF)) == 0x7F80);
  CHECK(bfloat16_bits(from_bits(0xFF7F7FFF)) == 0xFF7F);
  CHECK(bfloat16_bits(from_bits(0x807FFFFF)) == 0x8000);  // flushed first, or it would round up to the smallest normal
  CHECK(bfloat16_bits(from_bits(0x7F800001)) == 0x7FC0);
  for (std::uint64_t i = 0; i < 200000; ++i) {
    const float x = from_bits(stream_word(7, 1, i));
    if (!is_finite(x) || std::fabs(x) < kMinNormal) continue;
    const float low = from_bits(to_bits(x) & 0xFFFF0000U);
    const float high = from_bits((to_bits(x) & 0xFFFF0000U) + 0x10000U);
    const double to_low = std::fabs(double{x} - double{low});
    const double to_high = is_finite(high) ? std::fabs(double{high} - double{x}) : std::ldexp(1.0, 128) - std::fabs(x);
    const bool even_low = ((to_bits(low) >> 16) & 1U) == 0;
    const float want = to_low < to_high || (to_low == to_high && even_low) ? low : high;
    REQUIRE(to_bits(expand_bfloat16(bfloat16_bits(x))) == to_bits(want));
  }
}

TEST_CASE("an int8 row holds the nearest multiples of its power of two") {
  const Array values = matrix(64, 33, Content::ordinary, 11);
  const PackedWeight packed = pack_one(values, WeightFormat::int8).packed();
  const Array expanded = expand(packed);
  for (std::size_t row = 0; row < 64; ++row) {
    const int exponent = packed.exponents().values<std::int32_t>()[row];
    double largest = 0.0;
    for (std::size_t j = 0; j < 33; ++j) {
      const double x = values.floats()[row * 33 + j];
      const double error = std::fabs(x - double{expanded.floats()[row * 33 + j]});
      const double step = std::ldexp(1.0, exponent);
      largest = std::max(largest, std::fabs(x) / step);
      // Half a step, or more where 127.5 to 128 steps are clamped to 127.
      CHECK(error <= (std::fabs(x) / step > 127.5 ? step : 0.5 * step));
    }
    CHECK(largest >= 64.0);
    CHECK(largest < 128.0);
  }
}

TEST_CASE("the edges of int8 are those of the formulas") {
  const Array ties = Array::from_floats({1, 6}, std::vector<float>{64.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F});
  const PackedWeight tied = pack_one(ties, WeightFormat::int8).packed();
  const auto codes = tied.codes().values<std::int8_t>();
  CHECK(std::vector<int>(codes.begin(), codes.end()) == std::vector<int>{64, 0, 2, 2, 0, -2});
  // Below 2^-121: the inverse scale is infinite, and the row expands to zeros.
  const Array tiny = Array::from_floats({1, 3}, std::vector<float>{0x1p-125F, 0.0F, -0x1p-126F});
  const PackedWeight tiny_codes = pack_one(tiny, WeightFormat::int8).packed();
  CHECK(tiny_codes.codes().values<std::int8_t>()[0] == 127);
  CHECK(tiny_codes.codes().values<std::int8_t>()[1] == 0);
  CHECK(tiny_codes.codes().values<std::int8_t>()[2] == -127);
  CHECK(bits_equal(expand(tiny_codes).floats(), std::vector<float>{0.0F, 0.0F, -0.0F}));
  const Array wild = Array::from_floats({1, 3}, std::vector<float>{kInfinity, kQuietNan, 1.0F});
  const PackedWeight wild_codes = pack_one(wild, WeightFormat::int8).packed();
  CHECK(wild_codes.exponents().values<std::int32_t>()[0] == 122);
  CHECK(wild_codes.codes().values<std::int8_t>()[1] == 0);
  // By hand: an exponent above 127 makes infinities, and NaN of the code 0; -128 is a code like any other.
  CHECK(is_nan(expand_int8(0, power_of_two(128))));
  CHECK(expand_int8(-128, power_of_two(0)) == -128.0F);
  CHECK(to_bits(expand_int8(-3, power_of_two(-127))) == kSignBit);
}

TEST_CASE("packing what was expanded gives the same values for any bit patterns") {
  for (const Content content : {Content::any_bits, Content::ordinary}) {
    for (std::uint32_t seed = 1; seed <= 60; ++seed) {
      const Index rows = 1 + seed % 9, columns = 1 + seed * 7 % 41;
      const Array values = matrix(rows, columns, content, seed);
      for (const WeightFormat format : kPacked) {
        INFO(weight_format_name(format) << ", seed " << seed);
        const PackedWeight packed = pack_one(values, format).packed();
        const Array expanded = expand(packed);
        const PackedWeight again = pack_one(expanded, format).packed();
        CHECK(bits_equal(expand(again).floats(), expanded.floats()));
        CHECK(packed.byte_size() == stored_bytes(format, rows, columns));
        CHECK(same_packed(pack_one(packed, format).packed(), packed));
        // Another format: by way of float32.
        const WeightFormat other = format == WeightFormat::int8 ? WeightFormat::bfloat16 : WeightFormat::int8;
        CHECK(same_packed(pack_one(packed, other).packed(), pack_one(expanded, other).packed()));
        CHECK(bits_equal(pack_one(packed, WeightFormat::float32).array().floats(), expanded.floats()));
      }
    }
  }
}

TEST_CASE("pack takes tensors by rank, and a set has one packed format") {
  const ArrayMap weights = {{"matrix", matrix(3, 4, Content::ordinary, 1)},
                            {"norm.weight", Array::zeros({4})},
                            {"taps", Array::zeros({4, 1, 3})}};
  CHECK(weight_format(weights) == WeightFormat::float32);
  for (const WeightFormat format : kPacked) {
    const WeightMap packed = pack(weights, format);
    CHECK(packed.at("matrix").is_packed());
    CHECK_FALSE(packed.at("norm.weight").is_packed());
    CHECK_FALSE(packed.at("taps").is_packed());
    CHECK(packed.at("matrix").shape() == Shape{3, 4});
    CHECK(weight_format(packed) == format);
    const ArrayMap expanded = expand(packed);
    CHECK(expanded.size() == 3);
    CHECK(weight_format(pack(packed, WeightFormat::float32)) == WeightFormat::float32);
  }
  WeightMap mixed = pack(weights, WeightFormat::int8);
  mixed["second"] = pack_one(weights.at("matrix"), WeightFormat::bfloat16);
  check_refused(ErrorKind::value, "weights mix formats", [&] { weight_format(mixed); });
}

TEST_CASE("what cannot be packed is refused by name") {
  CHECK(parse_weight_format("int8") == WeightFormat::int8);
  check_refused(ErrorKind::value, "unknown format 'fp8'; one of float32, bfloat16, int8",
                [] { parse_weight_format("fp8"); });
  check_refused(ErrorKind::value, "bias must be 2-D to pack",
                [] { pack_one(Array::zeros({4}), WeightFormat::int8, "bias"); });
  check_refused(ErrorKind::type, "pack takes float32", [] {
    pack_one(Array(DType::float64, {2, 2}), WeightFormat::bfloat16);
  });
  check_refused(ErrorKind::type, "m has dtype float16; pack takes float32", [] {
    pack(ArrayMap{{"m", Array(DType::float16, {2, 2})}}, WeightFormat::bfloat16);
  });
  check_refused(ErrorKind::value, "must not be empty", [] { pack_one(Array::zeros({0, 3}), WeightFormat::bfloat16); });
}

TEST_CASE("containers of the wrong type or shape are refused") {
  const std::string bits = "bits must be a 2-D uint16 array";
  const std::string codes = "codes must be a 2-D int8 array";
  const std::string exponents = "exponents must be int32 of shape (rows,)";
  check_refused(ErrorKind::type, bits, [] { PackedWeight(Array(DType::int32, {2, 2})); });
  check_refused(ErrorKind::value, bits, [] { PackedWeight(Array(DType::uint16, {4})); });
  const Array good(DType::int8, {2, 3});
  check_refused(ErrorKind::type, codes, [] { PackedWeight(Array(DType::uint8, {2, 2}), Array(DType::int32, {2})); });
  check_refused(ErrorKind::value, codes, [] { PackedWeight(Array(DType::int8, {2}), Array(DType::int32, {2})); });
  check_refused(ErrorKind::type, exponents, [&] { PackedWeight(good, Array(DType::int64, {2})); });
  check_refused(ErrorKind::value, exponents, [&] { PackedWeight(good, Array(DType::int32, {3})); });
  check_refused(ErrorKind::value, exponents, [&] { PackedWeight(good, Array(DType::int32, {2, 1})); });
}

TEST_CASE("a packed weight is stored as its parts, and read from them") {
  const ArrayMap weights = {{"a.weight", matrix(3, 4, Content::ordinary, 1)}, {"a.bias", Array::zeros({3})}};
  for (const WeightFormat format : kPacked) {
    const WeightMap packed = pack(weights, format);
    const ConstArrayMap stored = stored_arrays(packed);
    CHECK(stored.contains("a.bias"));
    CHECK_FALSE(stored.contains("a.weight"));
    CHECK(stored.contains("a.weight.bits") == (format == WeightFormat::bfloat16));
    CHECK(stored.contains("a.weight.codes") == (format == WeightFormat::int8));
    CHECK(stored.contains("a.weight.exponents") == (format == WeightFormat::int8));
    const ConstWeightMap read = weights_of_stored(stored);
    REQUIRE(read.size() == 2);
    CHECK(same_packed(PackedWeight(read.at("a.weight").packed()), packed.at("a.weight").packed()));
  }
  ArrayMap parts = {{"w.codes", Array(DType::int8, {2, 2})}};
  check_refused(ErrorKind::value, "w has codes but no exponents", [&] {
    weights_of_stored({parts.begin(), parts.end()});
  });
  parts = {{"w.exponents", Array(DType::int32, {2})}};
  check_refused(ErrorKind::value, "w has exponents but no codes", [&] {
    weights_of_stored({parts.begin(), parts.end()});
  });
  parts = {{"w.bits", Array(DType::int8, {2, 2})}};
  check_refused(ErrorKind::type, "w: bits must be a 2-D uint16 array", [&] {
    weights_of_stored({parts.begin(), parts.end()});
  });
  parts = {{"w.bits", Array(DType::uint16, {2, 2})}, {"w", Array::zeros({2, 2})}};
  check_refused(ErrorKind::value, "w is stored twice", [&] { weights_of_stored({parts.begin(), parts.end()}); });
}

}  // namespace samba
