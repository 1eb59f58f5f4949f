#include <catch2/catch.hpp>

#include <algorithm>

#include "kernel_twins.h"
#include "samba/kernels/extended_gradients.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/philox.h"

namespace samba {

namespace {

constexpr Draw kKinds[] = {Draw::normal, Draw::mixed, Draw::small, Draw::tiny};
constexpr UnaryFunction kUnaryFunctions[] = {
    UnaryFunction::exp,     UnaryFunction::log,  UnaryFunction::log1p,    UnaryFunction::sqrt,     UnaryFunction::rsqrt,
    UnaryFunction::sigmoid, UnaryFunction::silu, UnaryFunction::softplus, UnaryFunction::sin,      UnaryFunction::cos,
    UnaryFunction::tanh,    UnaryFunction::erf,  UnaryFunction::gelu,     UnaryFunction::gelu_tanh};

// Any bit pattern, then ordinary values, then the patterns around zero and around the limits of exp and of the angles.
Values function_inputs(Draws& draws) {
  Values x(7001, 3);
  for (Index i = 0; i < x.size(); ++i) {
    x[i] = draws.value(i < 4000 ? Draw::bits : i < 5500 ? Draw::mixed : Draw::normal);
  }
  const std::uint32_t edges[] = {0,          1,          0x007FFFFF, 0x00800000, 0x00800001, 0x7F800000, 0x7FC00000,
                                 0x3F800000, 0x42B17217, 0x42B17218, 0xC2AEAC50, 0xC2AEAC51, 0x41A00000, 0x42317218,
                                 0x45FFFFFF, 0x3F200000, 0xBE95F61A, 0x3ED413CD, 0xBF800000, 0x3F3504F3};
  Index at = 6000;
  for (const std::uint32_t edge : edges) {
    x[at++] = from_bits(edge);
    x[at++] = from_bits(edge ^ kSignBit);
  }
  return x;
}

bool in_angle_domain(float x) { return !is_finite(x) || std::fabs(x) < 8192.0F; }

}  // namespace

TEST_CASE("the elementary functions give the reference's bits for any bit pattern") {
  Draws draws(1);
  const Values x = function_inputs(draws);
  for (const UnaryFunction function : kUnaryFunctions) {
    INFO("function " << static_cast<int>(function));
    Values in = x;
    if (function == UnaryFunction::sin || function == UnaryFunction::cos) {
      for (Index i = 0; i < in.size(); ++i) {
        if (!in_angle_domain(in[i])) in[i] = std::fmod(in[i], 8192.0F);
      }
    }
    check_twins([&](Executor& executor) {
      Values y(in.size(), 2);
      executor.elementwise().unary(function, in.size(), in.data(), y.data());
      return Results{y};
    });
  }
}

TEST_CASE("binary functions and clamp give the reference's bits for any bit pattern") {
  Draws draws(2);
  const Values a = function_inputs(draws);
  Values b = function_inputs(draws);
  std::reverse(b.data(), b.data() + b.size());
  Values base = a;
  for (Index i = 0; i < base.size(); i += 2) base[i] = std::fabs(base[i]);
  for (const BinaryFunction function :
       {BinaryFunction::add, BinaryFunction::mul, BinaryFunction::div, BinaryFunction::max, BinaryFunction::pow}) {
    INFO("function " << static_cast<int>(function));
    check_twins([&](Executor& executor) {
      Values y(a.size());
      executor.elementwise().binary(function, a.size(), base.data(), b.data(), y.data());
      return Results{y};
    });
  }
  const float bounds[][2] = {{-1.0F, 1.0F},          {-0.0F, 0.0F},     {0.0F, -0.0F},          {2.0F, -3.0F},
                             {0x1p-130F, 0x1p-127F}, {kQuietNan, 1.0F}, {-kInfinity, kInfinity}};
  for (const auto& bound : bounds) {
    check_twins([&](Executor& executor) {
      Values y(a.size());
      executor.elementwise().clamp(a.size(), a.data(), bound[0], bound[1], y.data());
      return Results{y};
    });
  }
}

TEST_CASE("sums, flushes and the gated unit give the reference's bits, also in place") {
  Draws draws(3);
  for (const Draw kind : kKinds) {
    for (const Index n : {1, 15, 16, 17, 40003}) {
      const Values gate = draws.values(n, kind), up = draws.values(n, kind), act = draws.values(n, kind);
      const Values d_gated = draws.values(n, kind);
      check_twins([&](Executor& executor) {
        ElementwiseKernels& kernels = executor.elementwise();
        Results r(8, Values(n));
        kernels.add(n, gate.data(), up.data(), r[0].data());
        kernels.flush(n, gate.data(), r[1].data());
        r[2] = gate;
        kernels.add(n, r[2].data(), up.data(), r[2].data());
        kernels.swiglu_forward(n, gate.data(), up.data(), r[3].data(), r[4].data());
        kernels.swiglu_backward(n, gate.data(), up.data(), act.data(), d_gated.data(), r[5].data(), r[6].data(),
                                r[7].data());
        return r;
      });
      const auto slopes = [&](Executor& executor) {
        auto& kernels = dynamic_cast<ActivationGradients&>(executor.elementwise());
        Results r(2, Values(n));
        kernels.unary_backward(UnaryFunction::gelu, n, gate.data(), d_gated.data(), r[0].data());
        r[1] = d_gated;
        kernels.unary_backward(UnaryFunction::gelu_tanh, n, gate.data(), r[1].data(), r[1].data());
        return r;
      };
      check_twins(slopes);
    }
  }
}

TEST_CASE("the rectifier and its gradient give the reference's bits for any bit pattern, also in place") {
  Draws draws(6);
  const Values x = function_inputs(draws);
  Values dy = function_inputs(draws);
  std::reverse(dy.data(), dy.data() + dy.size());
  check_twins([&](Executor& executor) {
    Results r(3, Values(x.size()));
    executor.elementwise().relu_forward(x.size(), x.data(), r[0].data());
    executor.elementwise().relu_backward(x.size(), x.data(), dy.data(), r[1].data());
    r[2] = x;
    executor.elementwise().relu_forward(x.size(), r[2].data(), r[2].data());
    return r;
  });
  const float values[] = {-1.0F, -0.0F, 1e-40F, 0.0F, 2.0F};
  const float upstream[] = {3.0F, 3.0F, 3.0F, 3.0F, -0.0F};
  float out[5], gradient[5];
  const auto executor = make_executor("reference");
  executor->elementwise().relu_forward(5, values, out);
  executor->elementwise().relu_backward(5, out, upstream, gradient);
  for (int i = 0; i < 5; ++i) {
    CHECK(to_bits(out[i]) == to_bits(i == 4 ? 2.0F : 0.0F));
    CHECK(to_bits(gradient[i]) == to_bits(i == 4 ? -0.0F : 0.0F));  // the sign of a zero comes through
  }
}

TEST_CASE("padding becomes +0 and the first value that is not finite is found") {
  Draws draws(4);
  const Values x = draws.values(3 * 5 * 7, Draw::mixed);
  const std::int32_t lengths[] = {5, 1, 3};
  check_twins([&](Executor& executor) {
    Values y = x;
    executor.elementwise().zero_padding(3, 5, 7, lengths, y.data());
    return Results{y};
  });
  Values large = draws.values(100003, Draw::mixed);
  for (const auto& executor : twin_executors()) {
    CHECK(executor->elementwise().first_non_finite(large.size(), large.data()) == -1);
    for (const Index at : {Index{0}, Index{16}, Index{50001}, Index{100002}}) {
      Values bad = large;
      bad[100002] = -kInfinity;
      bad[at] = kQuietNan;
      CHECK(executor->elementwise().first_non_finite(bad.size(), bad.data()) == at);
    }
  }
}

TEST_CASE("embedding rows and their gradient give the reference's bits, with padding and carry") {
  Draws draws(8);
  const Index shapes[][3] = {{1, 1, 1}, {50, 7, 5}, {300, 11, 33}, {2000, 256, 128}};
  for (const auto& shape : shapes) {
    const Index positions = shape[0], vocab = shape[1], width = shape[2];
    for (const Draw kind : kKinds) {
      const Values weight = draws.values(vocab * width, kind), dy = draws.values(positions * width, kind);
      const std::vector<std::int32_t> ids = draws.integers(positions, vocab);
      const Index padding = draws.below(vocab);
      check_twins([&](Executor& executor) {
        EmbeddingKernels& kernels = executor.embedding();
        Values y(positions * width), fresh(vocab * width), carried = weight;
        kernels.embedding_forward(positions, width, ids.data(), weight.data(), y.data());
        kernels.embedding_backward(positions, vocab, width, ids.data(), dy.data(), false, -1, fresh.data());
        kernels.embedding_backward(positions, vocab, width, ids.data(), dy.data(), true, padding, carried.data());
        return Results{y, fresh, carried};
      });
    }
  }
}

TEST_CASE("random values are functions of seed, stream and element alone") {
  Draws draws(9);
  for (const Index n : {1, 3, 17, 1021, 20011}) {
    const std::uint64_t seed = (std::uint64_t{draws.word()} << 32) | draws.word();
    const std::uint32_t stream = draws.word();
    check_twins([&](Executor& executor) {
      Values uniform(n), normal(n), narrow(n);
      executor.random().uniform(seed, stream, n, -1.5F, 2.25F, uniform.data());
      executor.random().uniform(seed, stream, n, 0x1p-126F, 0x1p-124F, narrow.data());
      executor.random().normal(seed, stream, n, 0.25F, 0.02F, normal.data());
      return Results{uniform, narrow, normal};
    });
  }
}

TEST_CASE("dropout gives the reference's bits at any offset") {
  Draws draws(10);
  const std::uint64_t offsets[] = {0, 1, 2, 3, 2147483647, (std::uint64_t{1} << 34) - 9, (std::uint64_t{1} << 40) + 3};
  const float probabilities[] = {0.0F, 0.1F, 0.5F, 0x1p-130F};
  for (const std::uint64_t offset : offsets) {
    for (const float p : probabilities) {
      const Index n = 1 + draws.below(9000);
      const Values x = draws.values(n, Draw::mixed), residual = draws.values(n, Draw::mixed);
      const DropoutKey key{draws.word(), draws.word(), offset, p, 1.0F / (1.0F - p)};
      check_twins([&](Executor& executor) {
        Values y(n), sum(n), in_place = x;
        executor.random().dropout(key, n, x.data(), y.data());
        executor.random().dropout(key, n, in_place.data(), in_place.data());
        executor.random().residual_dropout(key, n, x.data(), residual.data(), sum.data());
        return Results{y, in_place, sum};
      });
    }
  }
}

TEST_CASE("a coin that is equal to the probability keeps its value (spec 10 section 9)") {
  const std::uint64_t seed = 77, offset = 5;
  const std::uint32_t stream = 3;
  const Index n = 100;
  Values x(n), residual(n);
  for (Index i = 0; i < n; ++i) {
    x[i] = 1.0F;
    residual[i] = 0.0F;
  }
  for (const Index chosen : {0, 1, 50, 99}) {
    const float p = stream_coin(seed, stream, offset + static_cast<std::uint64_t>(chosen));
    INFO("position " << chosen << ", coin " << p);
    const DropoutKey key{seed, stream, offset, p, 2.0F};
    check_twins([&](Executor& executor) {
      Values y(n), sum(n);
      executor.random().dropout(key, n, x.data(), y.data());
      executor.random().residual_dropout(key, n, x.data(), residual.data(), sum.data());
      CHECK(y[chosen] == 2.0F);
      CHECK(sum[chosen] == 2.0F);
      return Results{y, sum};
    });
  }
}

TEST_CASE("cross-entropy gives the reference's bits, its stages and its gradient") {
  Draws draws(11);
  const Index shapes[][2] = {{1, 1}, {1, 2}, {3, 11}, {17, 128}, {18, 129}, {40, 256}, {23, 700}};
  const float smoothings[] = {0.0F, 0.1F, 0.75F, 1e-40F};
  const auto check = [&](const Index* shape, Draw kind, float smoothing) {
    const Index rows = shape[0], classes = shape[1];
    const CrossEntropyShape call{rows, classes, -100, smoothing};
    INFO(rows << " x " << classes << ", smoothing " << call.label_smoothing << ", kind " << static_cast<int>(kind));
    Values logits = draws.values(rows * classes, kind);
    if (rows == 23) logits[5] = kQuietNan;
    std::vector<std::int32_t> targets = draws.integers(rows, classes);
    for (Index i = 0; i < rows; i += 4) targets[static_cast<std::size_t>(i)] = rows > 1 ? -100 : 0;
    check_twins([&](Executor& executor) {
      Results r(7, Values(rows));
      for (const std::size_t i : {1, 2, 3}) r[i] = Values(rows * classes);
      executor.loss().cross_entropy(call, logits.data(), targets.data(), 37.0F, r[0].data(), r[1].data(),
                                    {r[4].data(), r[2].data(), r[3].data(), r[5].data(), r[6].data()});
      Values in_place = logits, row_loss(rows);
      executor.loss().cross_entropy(call, in_place.data(), targets.data(), 37.0F, row_loss.data(), in_place.data(), {});
      r.push_back(in_place);
      r.push_back(row_loss);
      return r;
    });
  };
  for (const auto& shape : shapes) {
    for (const Draw kind : kKinds) {
      for (const float smoothing : smoothings) check(shape, kind, smoothing);
    }
  }
}

TEST_CASE("the chunked head gives the reference's bits") {
  Draws draws(12);
  const Index shapes[][3] = {{1, 1, 2}, {5, 17, 33}, {300, 40, 19}};
  for (const auto& shape : shapes) {
    for (const Draw kind : kKinds) {
      const Index rows = shape[0], width = shape[1], classes = shape[2];
      const Values hidden = draws.values(rows * width, kind == Draw::mixed ? Draw::normal : kind);
      const Values weight = draws.values(classes * width, kind);
      const std::vector<std::int32_t> targets = draws.integers(rows, classes);
      check_twins([&](Executor& executor) {
        Values loss(1), d_hidden(rows * width), d_weight(classes * width);
        loss[0] = executor.loss().chunked_lm_head_loss(rows, width, classes, hidden.data(), weight.data(),
                                                       targets.data(), d_hidden.data(), d_weight.data());
        return Results{loss, d_hidden, d_weight};
      });
    }
  }
}

TEST_CASE("optimizer steps give the reference's bits, with subnormal hyperparameters too") {
  Draws draws(13);
  for (const Draw kind : kKinds) {
    for (const Index n : {1, 19, 20011}) {
      const Values gradient = draws.values(n, kind), parameters = draws.values(n, kind), m = draws.values(n, kind);
      Values v = draws.values(n, kind);
      for (Index i = 0; i < n; ++i) v[i] = std::fabs(v[i]);
      AdamScalars adam{0.9F, 0.999F, 0.1F, 0.001F, 0.002F, 0.03F, 1e-8F, 0.01F, 0.9999F, true, false};
      for (const int variant : {0, 1, 2, 3}) {
        adam.decoupled = variant != 1;
        adam.maximize = variant == 1;
        adam.eps = variant == 2 ? 1e-40F : variant == 3 ? 0.0F : 1e-8F;
        adam.weight_decay = variant == 3 ? 0.0F : 0.01F;
        check_twins([&](Executor& executor) {
          Results r{parameters, m, v};
          executor.optimizer().adam(adam, n, gradient.data(), r[0].data(), r[1].data(), r[2].data());
          return r;
        });
      }
      SgdScalars sgd{-0.01F, 0.9F, 0.7F, 0.05F, false, false, false};
      for (const int variant : {0, 1, 2, 3}) {
        sgd.nesterov = variant == 1;
        sgd.first = variant == 2;
        sgd.maximize = variant == 2;
        sgd.momentum = variant == 3 ? 0.0F : 0.9F;
        sgd.weight_decay = variant == 3 ? 1e-40F : 0.05F;
        check_twins([&](Executor& executor) {
          Results r{parameters, m};
          executor.optimizer().sgd(sgd, n, gradient.data(), r[0].data(), r[1].data());
          return r;
        });
      }
      check_twins([&](Executor& executor) {
        Values scaled = gradient;
        executor.optimizer().scale(n, 0.37F, scaled.data());
        return Results{scaled};
      });
    }
  }
}

TEST_CASE("sums of squares fold every tensor by its own leaves") {
  Draws draws(14);
  const std::vector<Index> sizes = {1, 127, 128, 129, 5000, 3, 140001, 2048, 131072};
  Index total = 0;
  for (const Index size : sizes) total += size;
  for (const Draw kind : kKinds) {
    const Values gradient = draws.values(total, kind);
    check_twins([&](Executor& executor) {
      Values sums(static_cast<Index>(sizes.size()));
      executor.optimizer().sums_of_squares(static_cast<Index>(sizes.size()), sizes.data(), gradient.data(),
                                           sums.data());
      return Results{sums};
    });
  }
}

}  // namespace samba
