// The gradients of every block are the slopes of its double-precision twin (double_twins/), for x and every weight.
//
// The bound is of the kind of double_twin_forward_test.cpp, in units of 2^-24 sqrt(n) times the largest value of the
// gradient; a gradient passes through twice as many stages as an output, and n counts the tokens of the batch too. A
// wrong sign or a missing term lies at 2^24 / sqrt(n) units.
#include <catch2/catch.hpp>

#include "double_twins/cases.h"
#include "double_twins/slopes.h"

namespace samba {
namespace {

using twin::Doubles;
using twin::Tensors;
using twin::to_doubles;
using twin::TwinCase;

constexpr double kBound = 8.0;

void check_gradients(Executor& executor, const TwinCase& of) {
  const ArrayMap weights = twin::model_weights(of, 20);
  const Array x = twin::model_input(of, 310);
  const Array grad_output = drawn(311, x.shape());
  BlockModule module(executor, of.kind, of.options, views(weights));
  module.admit_extended_gradients();
  const NamedGradients gradients = module.backward(x, grad_output);
  REQUIRE(gradients.names.size() == weights.size() + 1);

  Tensors values = to_doubles(weights);
  Doubles input = to_doubles(x.floats());
  const Doubles cotangent = to_doubles(grad_output.floats());
  const auto loss = [&] {
    const Doubles y = of.twin->forward(values, input, of.batch, of.length);
    double sum = 0.0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * cotangent[i];
    return sum;
  };
  const std::size_t chain = std::max(of.chain(), static_cast<std::size_t>(of.batch * of.length));
  const bool is_long = of.length > 64;  // its twin takes milliseconds a call
  const twin::SlopeTests tests = is_long ? twin::SlopeTests{1, 1} : twin::SlopeTests{2, 4};
  for (const std::string& name : gradients.names) {
    Doubles& variable = name == "x" ? input : values.at(name);
    twin::check_slopes(loss, variable, gradients.arrays.at(name).floats(), chain, kBound, name, tests);
  }
}

}  // namespace

TEST_CASE("The gradients of every block are the slopes of its double-precision twin") {
  // The executors give the same bits (every other test of gradients); one slow comparison of each is enough.
  const auto reference = make_executor("reference");
  const auto cpu = make_executor("cpu");
  std::size_t compared = 0;
  for (const TwinCase& of : twin::every_case()) {
    Executor& executor = compared++ % 2 == 0 ? *reference : *cpu;
    INFO(of.name << " on " << executor.name());
    check_gradients(executor, of);
  }
  CHECK(compared == 24);
}

TEST_CASE("Small inputs, where the epsilon of a norm matters, have the slopes of the twin") {
  const auto executor = make_executor("cpu");
  for (TwinCase of : {twin::transformer_case("default", twin::transformer_sizes(2, 1, 6, 10)),
                      twin::mamba_case("mamba1", "mamba1", 9, 2, 5, 0)}) {
    INFO(of.name);
    const ArrayMap weights = twin::model_weights(of);
    Array x = twin::model_input(of, 312);
    for (float& value : x.floats()) value *= 0x1p-8F;
    const Array grad_output = drawn(313, x.shape());
    BlockModule module(*executor, of.kind, of.options, views(weights));
    const NamedGradients gradients = module.backward(x, grad_output);
    const Tensors values = to_doubles(weights);
    // The input in units of 2^-8, so that a step stays small beside it.
    Doubles scaled = to_doubles(x.floats());
    for (double& value : scaled) value *= 256.0;
    const auto loss = [&] {
      Doubles input = scaled;
      for (double& value : input) value /= 256.0;
      const Doubles y = of.twin->forward(values, input, of.batch, of.length);
      double sum = 0.0;
      for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * static_cast<double>(grad_output.floats()[i]);
      return sum;
    };
    Array by_scaled = gradients.arrays.at("x");
    for (float& value : by_scaled.floats()) value /= 256.0F;
    twin::check_slopes(loss, scaled, by_scaled.floats(), of.chain(), kBound, "x");
  }
}

}  // namespace samba
