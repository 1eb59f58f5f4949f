// Products of random sizes around the borders of tiles, panels, vectors, blocks of rows and leaves: what each way of
// multiplying gives on every instruction set with 1, 2 and 3 threads has the bits of the reference executor. A case
// that fails is shrunk and printed with the line that repeats it; RC_PARAMS overrides seed and number of cases.
#include <rapidcheck.h>

#include <cstdlib>

#include "drawn_weights.h"
#include "samba/kernels/linear_groups.h"

namespace samba {
namespace {

constexpr Index kMostSteps = 1'500'000;  // of one product

struct ProductCase {
  Index m, n, k;
  Draw values;
  std::uint64_t seed;

  std::string text() const {
    return "m " + std::to_string(m) + " n " + std::to_string(n) + " k " + std::to_string(k) +
           (values == Draw::normal ? ", ordinary values, seed " : ", mixed values, seed ") + std::to_string(seed);
  }
};

Index between(Index low, Index high) { return *rc::gen::inRange<Index>(low, high + 1); }

// Beside a multiple of one of `steps`, or anything; 1 to `most`.
Index near_borders(const std::vector<Index>& steps, Index most) {
  if (between(0, 3) == 0) return between(1, most);
  const Index step = steps[static_cast<std::size_t>(between(0, static_cast<Index>(steps.size()) - 1))];
  return std::clamp<Index>(step * between(0, most / step) + between(-1, 1), 1, most);
}

enum class Kind { few_rows, many_rows, blocks_of_32, blocks_of_256 };

// Rows of tiles (6, 8) and their blocks (64); lanes and panels (8, 16, 48); leaves (128). Many rows: those that 6 cuts
// unevenly into blocks, and the multiples of 512 whose columns share cache sets.
ProductCase draw_case(Kind kind) {
  ProductCase c{};
  if (kind == Kind::many_rows) {
    c.m = between(0, 1) == 0 ? between(512, 1300) : 512 * between(1, 2);
    c.n = near_borders({16, 48}, 60);
  } else {
    c.m = between(0, 4) == 0 ? 1 : near_borders({6, 8, 64}, 130);
    c.n = near_borders({8, 16, 48}, 160);
  }
  const Index most = std::min<Index>(700, kMostSteps / (c.m * c.n));
  const Index group = kind == Kind::blocks_of_32 ? 32 : kind == Kind::blocks_of_256 ? 256 : 1;
  c.k = (near_borders({4, 128}, std::max<Index>(1, most)) + group - 1) / group * group;
  c.values = between(0, 1) == 0 ? Draw::normal : Draw::mixed;
  c.seed = static_cast<std::uint64_t>(between(0, 1 << 20));
  return c;
}

Executor& reference() {
  static const auto executor = make_executor("reference");
  return *executor;
}

// Those of the cpu: their products are what borders could break.
const std::vector<std::unique_ptr<Executor>>& executors() {
  static const auto made = [] {
    std::vector<std::unique_ptr<Executor>> all;
    for (const std::string& set : instruction_sets()) {
      for (const int threads : {1, 2, 3}) all.push_back(make_executor("cpu", {threads, set}));
    }
    return all;
  }();
  return made;
}

void require_same(const ProductCase& c, const Executor& executor, const std::string& what, const Values& got,
                  const Values& want) {
  if (bits_equal(got, want)) return;
  RC_FAIL(what + " on " + executor.instruction_set() + " with " + std::to_string(executor.threads()) + " threads, " +
          c.text());
}

// `check` for `count` drawn cases.
void check_products(const std::string& what, int count, Kind kind,
                    const std::function<void(const ProductCase&, Draws&)>& check) {
  setenv("RC_PARAMS", "seed=20261130", 0);
  rc::detail::TestMetadata metadata;
  metadata.id = metadata.description = what;
  rc::detail::TestParams parameters = rc::detail::configuration().testParams;
  parameters.maxSuccess = std::min(parameters.maxSuccess, count);
  const auto result = rc::detail::checkTestable(
      [&] {
        const auto cases = rc::gen::exec([=] { return draw_case(kind); });
        const ProductCase c = *rc::gen::resize(rc::kNominalSize, cases);
        Draws draws(c.seed);
        check(c, draws);
      },
      metadata, parameters);
  const bool holds = result.is<rc::detail::SuccessResult>();
  if (!holds) {
    rc::detail::printResultMessage(result, std::cerr);
    std::cerr << std::endl;
  }
  INFO(what);
  CHECK(holds);
}

struct Epilogues {
  Values bias, residual;
  Epilogues(Draws& draws, const ProductCase& c)
      : bias(draws.values(c.n, c.values)), residual(draws.values(c.m * c.n, c.values)) {}
};

// Products of one x with a weight, and what may follow them, as calls one after another.
class PreparedCalls {
 public:
  PreparedCalls(Executor& executor, const ProductCase& c) : executor_(executor), c_(c) {}

  Values product(const PreparedWeight& weight, const Values& x) {
    Values y = unwritten(c_.m * weight.rows());
    executor_.linear().linear(weight, c_.m, x.data(), y.data());
    return y;
  }
  Values finished(const PreparedWeight& weight, const Values& x, const Epilogues& e) {
    const Values y = biased(weight, x, e);
    Values sum = unwritten(y.size());
    executor_.elementwise().add(y.size(), e.residual.data(), y.data(), sum.data());
    return sum;
  }
  Values biased(const PreparedWeight& weight, const Values& x, const Epilogues& e) {
    Values y = product(weight, x);
    executor_.linear().add_bias(c_.m, c_.n, e.bias.data(), y.data());
    return y;
  }

 private:
  Executor& executor_;
  const ProductCase& c_;
};

// linear() and the fused calls with a weight that `prepare` prepares, against the calls of the reference.
void check_prepared(const ProductCase& c, Draws& draws,
                    const std::function<std::unique_ptr<PreparedWeight>(LinearKernels&)>& prepare) {
  const Values x = draws.values(c.m * c.k, c.values), other = draws.values(7 * c.k, c.values);
  const Epilogues e(draws, c);
  PreparedCalls calls(reference(), c);
  const auto expected_weight = prepare(reference().linear());
  const auto expected_other = reference().linear().prepare(7, c.k, other.data());
  const Values plain = calls.product(*expected_weight, x), biased = calls.biased(*expected_weight, x, e);
  const Values finished = calls.finished(*expected_weight, x, e), seven = calls.product(*expected_other, x);
  Values act = unwritten(c.m * c.n), gated = unwritten(c.m * c.n);
  reference().elementwise().swiglu_forward(c.m * c.n, plain.data(), biased.data(), act.data(), gated.data());

  for (const auto& executor : executors()) {
    LinearKernels& linear = executor->linear();
    const auto weight = prepare(linear), narrow = linear.prepare(7, c.k, other.data());
    require_same(c, *executor, "a prepared weight", PreparedCalls(*executor, c).product(*weight, x), plain);

    auto& groups = dynamic_cast<LinearGroups&>(linear);
    Values a = unwritten(plain.size()), b = unwritten(7 * c.m), d = unwritten(plain.size());
    const LinearTerm terms[] = {{weight.get(), a.data(), e.bias.data(), nullptr},
                                {narrow.get(), b.data(), nullptr, nullptr},
                                {weight.get(), d.data(), e.bias.data(), e.residual.data()}};
    groups.linear_group(c.m, x.data(), terms);
    require_same(c, *executor, "the first of a group, with a bias", a, biased);
    require_same(c, *executor, "the second of a group", b, seven);
    require_same(c, *executor, "the last of a group, with bias and residual", d, finished);

    Values place[2] = {unwritten(plain.size()), unwritten(plain.size())};
    groups.linear_swiglu(c.m, x.data(), {weight.get(), place[0].data()}, {weight.get(), place[1].data(), e.bias.data()},
                         place[0].data(), place[1].data());
    require_same(c, *executor, "an activated gate", place[0], act);
    require_same(c, *executor, "a gated product", place[1], gated);
  }
}

void check_gemm(const ProductCase& c, Draws& draws) {
  const Values a = draws.values(c.m * c.k, c.values), b = draws.values(c.n * c.k, c.values);
  for (const Layout layout : {Layout::nn, Layout::nt, Layout::tn}) {
    Values want = unwritten(c.m * c.n);
    reference().linear().gemm(layout, c.m, c.n, c.k, a.data(), b.data(), want.data());
    for (const auto& executor : executors()) {
      Values got = unwritten(c.m * c.n);
      executor->linear().gemm(layout, c.m, c.n, c.k, a.data(), b.data(), got.data());
      const char* name = layout == Layout::nn ? "nn" : layout == Layout::nt ? "nt" : "tn";
      require_same(c, *executor, name, got, want);
    }
  }
}

}  // namespace

TEST_CASE("products of matrices that are not prepared, at random sizes") {
  check_products("nn, nt and tn", 90, Kind::few_rows, check_gemm);
  check_products("nn, nt and tn of many rows", 16, Kind::many_rows, check_gemm);
}

TEST_CASE("products with prepared weights and what follows them, at random sizes") {
  check_products("prepared weights", 36, Kind::few_rows, [](const ProductCase& c, Draws& draws) {
    const Values weight = draws.values(c.n * c.k, c.values);
    check_prepared(c, draws, [&](LinearKernels& linear) { return linear.prepare(c.n, c.k, weight.data()); });
  });
}

TEST_CASE("products with packed weights and what follows them, at random sizes") {
  check_products("bfloat16 and int8 weights", 26, Kind::few_rows, [](const ProductCase& c, Draws& draws) {
    const WeightFormat format = c.seed % 2 == 0 ? WeightFormat::bfloat16 : WeightFormat::int8;
    const PackedWeight weight = draw_packed(draws, format, c.n, c.k, c.values == Draw::mixed);
    check_prepared(c, draws, [&](LinearKernels& linear) { return linear.prepare(weight); });
  });
}

TEST_CASE("products with rows of blocks and what follows them, at random sizes") {
  constexpr WeightFormat kShort[] = {WeightFormat::float16, WeightFormat::bfloat16, WeightFormat::q8_0,
                                     WeightFormat::q4_0,    WeightFormat::q4_1,     WeightFormat::q5_0,
                                     WeightFormat::q5_1};
  constexpr WeightFormat kLong[] = {WeightFormat::q4_k, WeightFormat::q5_k, WeightFormat::q6_k};
  const auto check = [](std::span<const WeightFormat> formats) {
    return [formats](const ProductCase& c, Draws& draws) {
      const DrawnBlocks weight = draw_blocks(draws, formats[c.seed % formats.size()], c.n, c.k);
      check_prepared(c, draws, [&](LinearKernels& linear) { return linear.prepare(weight.view); });
    };
  };
  check_products("halves", 14, Kind::few_rows, check(std::span(kShort).first(2)));
  check_products("blocks of 32", 28, Kind::blocks_of_32, check(std::span(kShort).subspan(2)));
  check_products("blocks of 256", 14, Kind::blocks_of_256, check(kLong));
}

}  // namespace samba
