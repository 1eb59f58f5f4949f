// Products side by side and what follows them (linear_groups.h): the bits of the calls they stand for.
#include "samba/kernels/linear_groups.h"
#include "kernel_twins.h"

namespace samba {
namespace {

struct Size {
  Index m, n, k;
};
// One tile of rows, an uneven last one, several blocks; panels that are full, partial, shared in two.
constexpr Size kSizes[] = {{1, 64, 96}, {5, 33, 129}, {9, 130, 300}, {70, 49, 257}, {141, 20, 64}};

// With every executor that offers them: the cpu with each instruction set and number of threads, the GPU kernels.
void each_group(const std::function<void(Executor&, LinearGroups&)>& check) {
  for (const auto& executor : twin_executors()) {
    INFO(executor->name() << " " << executor->instruction_set());
    auto* groups = dynamic_cast<LinearGroups*>(&executor->linear());
    REQUIRE(groups != nullptr);
    check(*executor, *groups);
  }
}

}  // namespace

TEST_CASE("products of one x side by side, with bias and residual, are the calls one after another") {
  Draws draws(71);
  for (const Size& size : kSizes) {
    const Values x = draws.values(size.m * size.k, Draw::mixed), narrow = draws.values(7 * size.k, Draw::mixed);
    const Values weight = draws.values(size.n * size.k, Draw::mixed), bias = draws.values(size.n, Draw::mixed);
    const Values residual = draws.values(size.m * size.n, Draw::mixed);
    each_group([&](Executor& executor, LinearGroups& groups) {
      LinearKernels& linear = executor.linear();
      const auto first = linear.prepare(size.n, size.k, weight.data());
      const auto second = linear.prepare(7, size.k, narrow.data());
      Values plain(size.m * size.n), biased(size.m * size.n), sum(size.m * size.n), seven(size.m * 7);
      linear.linear(*first, size.m, x.data(), plain.data());
      linear.linear(*first, size.m, x.data(), biased.data());
      linear.add_bias(size.m, size.n, bias.data(), biased.data());
      executor.elementwise().add(size.m * size.n, residual.data(), biased.data(), sum.data());
      linear.linear(*second, size.m, x.data(), seven.data());

      Values y[3] = {Values(size.m * size.n), Values(size.m * size.n), Values(size.m * size.n)};
      Values other(size.m * 7);
      const LinearTerm terms[] = {{first.get(), y[0].data(), nullptr, nullptr},
                                  {second.get(), other.data(), nullptr, nullptr},
                                  {first.get(), y[1].data(), bias.data(), nullptr},
                                  {first.get(), y[2].data(), bias.data(), residual.data()}};
      groups.linear_group(size.m, x.data(), terms);
      CHECK(bits_equal(y[0], plain));
      CHECK(bits_equal(other, seven));
      CHECK(bits_equal(y[1], biased));
      CHECK(bits_equal(y[2], sum));
    });
  }
}

TEST_CASE("gate and up with their activation are two products and a swiglu, in arrays of their own or in place") {
  Draws draws(72);
  for (const Size& size : kSizes) {
    const Index cells = size.m * size.n;
    const Values x = draws.values(size.m * size.k, Draw::mixed), bias = draws.values(size.n, Draw::mixed);
    const Values gate_weight = draws.values(size.n * size.k, Draw::mixed);
    const Values up_weight = draws.values(size.n * size.k, Draw::mixed);
    each_group([&](Executor& executor, LinearGroups& groups) {
      LinearKernels& linear = executor.linear();
      const auto gates = linear.prepare(size.n, size.k, gate_weight.data());
      const auto ups = linear.prepare(size.n, size.k, up_weight.data());
      Values gate(cells), up(cells), act(cells), gated(cells);
      linear.linear(*gates, size.m, x.data(), gate.data());
      linear.linear(*ups, size.m, x.data(), up.data());
      linear.add_bias(size.m, size.n, bias.data(), up.data());
      executor.elementwise().swiglu_forward(cells, gate.data(), up.data(), act.data(), gated.data());

      Values own[4] = {Values(cells), Values(cells), Values(cells), Values(cells)};
      groups.linear_swiglu(size.m, x.data(), {gates.get(), own[0].data()}, {ups.get(), own[1].data(), bias.data()},
                           own[2].data(), own[3].data());
      CHECK(bits_equal(own[0], gate));
      CHECK(bits_equal(own[1], up));
      CHECK(bits_equal(own[2], act));
      CHECK(bits_equal(own[3], gated));

      Values place[2] = {Values(cells), Values(cells)};
      groups.linear_swiglu(size.m, x.data(), {gates.get(), place[0].data()}, {ups.get(), place[1].data(), bias.data()},
                           place[0].data(), place[1].data());
      CHECK(bits_equal(place[0], act));
      CHECK(bits_equal(place[1], gated));
    });
  }
}

TEST_CASE("packed weights go side by side with others") {
  Draws draws(73);
  const Index m = 3, n = 40, k = 300;
  const Values x = draws.values(m * k, Draw::mixed), bias = draws.values(n, Draw::mixed);
  const Values values = draws.values(n * k, Draw::normal), residual = draws.values(m * n, Draw::mixed);
  const Weight stored = pack_one(ConstArray{DType::float32, {n, k}, values.data()}, WeightFormat::int8);
  each_group([&](Executor& executor, LinearGroups& groups) {
    LinearKernels& linear = executor.linear();
    const auto packed = linear.prepare(stored.packed()), plain = linear.prepare(n, k, values.data());
    Values want[2] = {Values(m * n), Values(m * n)}, y[2] = {Values(m * n), Values(m * n)};
    linear.linear(*packed, m, x.data(), want[0].data());
    linear.add_bias(m, n, bias.data(), want[0].data());
    linear.linear(*plain, m, x.data(), want[1].data());
    executor.elementwise().add(m * n, residual.data(), want[1].data(), want[1].data());
    const LinearTerm terms[] = {{packed.get(), y[0].data(), bias.data(), nullptr},
                                {plain.get(), y[1].data(), nullptr, residual.data()}};
    groups.linear_group(m, x.data(), terms);
    CHECK(bits_equal(y[0], want[0]));
    CHECK(bits_equal(y[1], want[1]));
  });
}

}  // namespace samba
