// The packed matrix product of the cpu executor against the fold of spec 10 section 3 written out.
#include <catch2/catch.hpp>
#include <vector>

#include "bits.h"
#include "samba/backends/registry.h"
#include "samba/numerics/fold.h"
#include "samba/numerics/philox.h"

namespace samba {
namespace {

// Values of a product: ordinary, tiny enough for every step to underflow, subnormal, signed zeros, whole numbers.
float draw(int family, std::uint32_t stream, std::uint64_t element) {
  const float value = stream_normal(11, stream, element, 0.0F, 1.0F);
  switch (family) {
    case 1:
      return value * 0x1p-70F;
    case 2: {
      const std::uint32_t word = stream_word(12, stream, element);
      if (word % 3 == 0) return from_bits(word & 0x807FFFFFU);
      return word % 3 == 1 ? from_bits(word & kSignBit) : value * 0x1p-64F;
    }
    case 3:
      return std::floor(value * 4.0F);
    default:
      return value;
  }
}

std::vector<float> matrix(int family, std::uint32_t stream, Index count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = draw(family, stream, i);
  return values;
}

std::vector<float> expected_product(Layout layout, Index m, Index n, Index k, const std::vector<float>& a,
                                    const std::vector<float>& b) {
  std::vector<float> c(static_cast<std::size_t>(m * n));
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < n; ++j) {
      c[static_cast<std::size_t>(i * n + j)] = dot(
          k, [&](Index p) { return a[static_cast<std::size_t>(layout == Layout::tn ? p * m + i : i * k + p)]; },
          [&](Index p) { return b[static_cast<std::size_t>(layout == Layout::nt ? j * k + p : p * n + j)]; });
    }
  }
  return c;
}

struct Size {
  Index m, n, k;
};
constexpr Size kSizes[] = {{1, 1, 1},       {1, 50, 128},  {2, 7, 129},    {3, 48, 256},   {7, 49, 300},
                           {8, 96, 385},    {9, 33, 40},   {13, 100, 5},   {65, 17, 77},   {70, 20, 640},
                           {17, 130, 1100}, {1, 333, 390}, {10, 410, 260}, {66, 110, 260}, {968, 36, 130},
                           {9, 400, 260},   {66, 56, 260}};

void check_all(Executor& executor) {
  for (const Size& size : kSizes) {
    for (int family = 0; family < 4; ++family) {
      const auto a = matrix(family, 1, size.m * size.k);
      const auto b = matrix(family == 2 ? 1 : family, 2, size.n * size.k);
      std::vector<float> c(static_cast<std::size_t>(size.m * size.n));
      INFO(executor.instruction_set() << ", " << executor.threads() << " threads, m " << size.m << " n " << size.n
                                      << " k " << size.k << " family " << family);
      for (const Layout layout : {Layout::nn, Layout::nt, Layout::tn}) {
        executor.linear().gemm(layout, size.m, size.n, size.k, a.data(), b.data(), c.data());
        REQUIRE(bits_equal(c, expected_product(layout, size.m, size.n, size.k, a, b)));
      }
      const auto want = expected_product(Layout::nt, size.m, size.n, size.k, a, b);
      const auto prepared = executor.linear().prepare(size.n, size.k, a.size() >= b.size() ? a.data() : b.data());
      executor.linear().refresh(*prepared, b.data());
      executor.linear().linear(*prepared, size.m, a.data(), c.data());
      REQUIRE(bits_equal(c, want));

      std::vector<float> sums(static_cast<std::size_t>(size.n)), ones(static_cast<std::size_t>(size.k), 1.0F);
      executor.linear().column_sum(size.k, size.n, b.data(), sums.data());
      REQUIRE(bits_equal(sums, expected_product(Layout::nn, 1, size.n, size.k, ones, b)));
    }
  }
  for (const Index n : {Index{1}, Index{127}, Index{129}, Index{5000}, Index{131072}, Index{131073}, Index{262145}}) {
    const auto a = matrix(0, 3, n), b = matrix(0, 4, n);
    const auto at = [](const std::vector<float>& v) {
      return [&v](Index i) { return v[static_cast<std::size_t>(i)]; };
    };
    CHECK(same_bits(executor.linear().dot(n, a.data(), b.data()), dot(n, at(a), at(b))));
    CHECK(same_bits(executor.linear().sum(n, a.data()), dot(n, at(a), [](Index) { return 1.0F; })));
  }
}

}  // namespace

TEST_CASE("every cell of the packed product is the fold of its own pairs, on every instruction set and thread count") {
  for (const std::string& isa : instruction_sets()) {
    for (const int threads : {1, 2, 3}) check_all(*make_executor("cpu", {threads, isa}));
  }
}

TEST_CASE("a contraction beyond 131072 terms has leaves longer than 128") {
  const Index k = 131073;
  const auto a = matrix(0, 5, 2 * k), b = matrix(0, 6, 3 * k);
  std::vector<float> c(6);
  for (const std::string& isa : instruction_sets()) {
    for (const Layout layout : {Layout::nn, Layout::nt, Layout::tn}) {
      make_executor("cpu", {2, isa})->linear().gemm(layout, 2, 3, k, a.data(), b.data(), c.data());
      CHECK(bits_equal(c, expected_product(layout, 2, 3, k, a, b)));
    }
  }
}

TEST_CASE("columns of A that lie far apart or share cache sets are packed and give the same product") {
  for (const Size& size : {Size{1069, 52, 1000}, Size{512, 52, 300}, Size{512, 600, 700}}) {
    const Index m = size.m, n = size.n, k = size.k;
    const auto a = matrix(0, 9, m * k), b = matrix(2, 10, n * k);
    const auto want = expected_product(Layout::tn, m, n, k, a, b);
    std::vector<float> c(want.size());
    for (const std::string& isa : instruction_sets()) {
      for (const int threads : {1, 3}) {
        INFO(isa << ", " << threads << " threads, m " << m << " n " << n << " k " << k);
        make_executor("cpu", {threads, isa})->linear().gemm(Layout::tn, m, n, k, a.data(), b.data(), c.data());
        CHECK(bits_equal(c, want));
      }
    }
  }
}

TEST_CASE("a bias is one add after the finished product") {
  for (const std::string& isa : instruction_sets()) {
    const auto executor = make_executor("cpu", {2, isa});
    auto y = matrix(2, 7, 35 * 37);
    const auto bias = matrix(2, 8, 37);
    std::vector<float> want(y.size());
    for (std::size_t i = 0; i < y.size(); ++i) want[i] = add(y[i], bias[i % 37]);
    executor->linear().add_bias(35, 37, bias.data(), y.data());
    CHECK(bits_equal(y, want));
  }
}

}  // namespace samba
