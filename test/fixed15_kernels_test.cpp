// The quantiser and the integer product of numeric_profile fixed15_v1 (spec 20 section 10): known answers, and the cpu
// executor against the reference executor.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "kernel_twins.h"
#include "samba/numerics/fixed15.h"

namespace samba {
namespace {

struct Quantized {
  std::vector<std::int16_t> codes;
  std::vector<std::int32_t> exponents;
};

Quantized quantize(Executor& executor, Index rows, Index k, const float* x) {
  Quantized result{std::vector<std::int16_t>(static_cast<std::size_t>(rows * k)),
                   std::vector<std::int32_t>(static_cast<std::size_t>(rows))};
  executor.fixed15().quantize(rows, k, x, result.codes.data(), result.exponents.data());
  return result;
}

Quantized quantize(Executor& executor, const std::vector<float>& row) {
  return quantize(executor, 1, static_cast<Index>(row.size()), row.data());
}

void with_all(const std::function<void(Executor&)>& body) {
  body(*make_executor("reference"));
  for (const auto& executor : twin_executors()) body(*executor);
}

// y = x W^T, the weight refreshed over one of other values.
Values product(Executor& executor, Index m, Index n, Index k, const Values& x, const Values& weight) {
  const std::vector<float> ones(static_cast<std::size_t>(n * k), 1.0F);
  const auto prepared = executor.fixed15().prepare(n, k, ones.data());
  executor.fixed15().refresh(*prepared, weight.data());
  Values y(m * n);
  executor.fixed15().linear(*prepared, m, x.data(), y.data());
  return y;
}

Values constant(Index size, float value) {
  Values values(size);
  for (Index i = 0; i < size; ++i) values[i] = value;
  return values;
}

// Rows whose codes are as large as codes get, so that few products fit into 32 bits; ordinary rows between them.
Values with_flat_rows(Draws& draws, Index rows, Index k) {
  Values values = draws.values(rows * k, Draw::normal);
  for (Index i = 0; i < rows; ++i) {
    if (draws.below(3) != 0) continue;
    const float sign = draws.below(2) == 0 ? 1.0F : -1.0F;
    for (Index p = 0; p < k; ++p) values[i * k + p] = sign * 0x1.fffffep3F;
  }
  return values;
}

}  // namespace

TEST_CASE("a row's exponent leaves its largest magnitude between 2^13 and 2^14, half to even, 16384 clamped") {
  with_all([](Executor& executor) {
    INFO(executor.name() << " " << executor.instruction_set());
    const Quantized halves = quantize(executor, {8192.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, 0.49999997F, -0.0F, 1e-30F});
    CHECK(halves.exponents[0] == 0);
    CHECK(halves.codes == std::vector<std::int16_t>{8192, 0, 2, 2, 0, -2, 0, 0, 0});
    const Quantized clamped = quantize(executor, {0x1.fffffep0F, -0x1.fffffep0F, 1.0F});
    CHECK(clamped.exponents[0] == -13);
    CHECK(clamped.codes == std::vector<std::int16_t>{16383, -16383, 8192});
    CHECK(quantize(executor, {0.0F, -0.0F, 1e-40F}).exponents[0] == 0);
    CHECK(quantize(executor, {0.0F, -0.0F, 1e-40F}).codes == std::vector<std::int16_t>{0, 0, 0});
  });
}

TEST_CASE("NaN counts for nothing in a row, an infinity wins, and rows below 2^-114 have full codes or none") {
  with_all([](Executor& executor) {
    INFO(executor.name() << " " << executor.instruction_set());
    const Quantized infinite = quantize(executor, {kInfinity, kQuietNan, 1.0F, -kInfinity, 0x1p115F});
    CHECK(infinite.exponents[0] == 115);
    CHECK(infinite.codes == std::vector<std::int16_t>{16383, 0, 0, -16383, 1});
    const Quantized nothing = quantize(executor, {kQuietNan, 1.0F});
    CHECK(nothing.exponents[0] == -13);
    CHECK(nothing.codes == std::vector<std::int16_t>{0, 8192});
    const Quantized tiny = quantize(executor, {0x1p-115F, 0.0F, -0x1p-126F, 0x1p-127F});
    CHECK(tiny.exponents[0] == -128);
    CHECK(tiny.codes == std::vector<std::int16_t>{16383, 0, -16383, 0});
  });
}

TEST_CASE("the integer product is exact where float32 and 32-bit sums are not") {
  with_all([](Executor& executor) {
    INFO(executor.name() << " " << executor.instruction_set());
    // 65536 products of 16383^2 with exponents of -10 each: the largest sum of all, and one of mixed signs that
    // cancels.
    const Index k = kLongestFixed15Sum;
    const Values x = constant(k, 0x1.fffffep3F);
    Values weight = constant(2 * k, 0x1.fffffep3F);
    for (Index p = 0; p < k / 2; ++p) weight[k + p] = -weight[k + p];
    weight[2 * k - 1] = 0.0F;
    const Values y = product(executor, 1, 2, k, x, weight);
    const double unit = std::ldexp(1.0, -20);
    CHECK(y[0] == static_cast<float>(65536.0 * 16383.0 * 16383.0 * unit));
    CHECK(y[1] == static_cast<float>(-16383.0 * 16383.0 * unit));
  });
}

TEST_CASE("exponents beyond the range of float32 give infinities, NaN and zeros of the sum's sign") {
  with_all([](Executor& executor) {
    INFO(executor.name() << " " << executor.instruction_set());
    Values huge = constant(2, 0x1p100F);
    Values orthogonal = constant(2, 0x1p100F);
    orthogonal[1] = -orthogonal[1];
    CHECK(product(executor, 1, 1, 2, huge, huge)[0] == kInfinity);
    CHECK(is_nan(product(executor, 1, 1, 2, huge, orthogonal)[0]));  // 0 * infinity
    Values small = constant(2, 0x1p-80F);
    Values negative = constant(2, -0x1p-80F);
    CHECK(same_bits(product(executor, 1, 1, 2, small, small)[0], 0.0F));
    CHECK(same_bits(product(executor, 1, 1, 2, small, negative)[0], -0.0F));
  });
}

TEST_CASE("the quantiser of the cpu executor has the reference's codes and exponents") {
  Draws draws(151);
  for (const Draw kind : {Draw::normal, Draw::mixed, Draw::small, Draw::tiny, Draw::bits}) {
    for (const Index k : {1, 2, 7, 16, 33, 64, 130}) {
      const Index rows = 9;
      const Values x = draws.values(rows * k, kind);
      const Quantized want = quantize(*make_executor("reference"), rows, k, x.data());
      for (const auto& executor : twin_executors()) {
        INFO(executor->instruction_set() << " k " << k << " kind " << static_cast<int>(kind));
        const Quantized got = quantize(*executor, rows, k, x.data());
        REQUIRE(got.codes == want.codes);
        REQUIRE(got.exponents == want.exponents);
      }
    }
  }
}

TEST_CASE("the integer product of the cpu executor has the reference's bits") {
  struct Size {
    Index m, n, k;
  };
  Draws draws(152);
  for (const Size& size : {Size{1, 1, 1}, Size{1, 50, 129}, Size{2, 7, 64}, Size{7, 49, 300}, Size{8, 96, 385},
                           Size{13, 100, 5}, Size{65, 33, 77}, Size{70, 20, 640}, Size{17, 130, 1100}}) {
    for (const Draw kind : {Draw::normal, Draw::mixed, Draw::tiny, Draw::bits}) {
      const Values x = draws.values(size.m * size.k, kind);
      const Values weight = draws.values(size.n * size.k, kind);
      INFO("m " << size.m << " n " << size.n << " k " << size.k << " kind " << static_cast<int>(kind));
      check_twins([&](Executor& executor) { return Results{product(executor, size.m, size.n, size.k, x, weight)}; });
    }
    const Values x = with_flat_rows(draws, size.m, size.k);
    const Values weight = with_flat_rows(draws, size.n, size.k);
    INFO("m " << size.m << " n " << size.n << " k " << size.k << ", rows of the largest codes");
    check_twins([&](Executor& executor) { return Results{product(executor, size.m, size.n, size.k, x, weight)}; });
  }
}

}  // namespace samba
