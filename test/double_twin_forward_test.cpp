// The forward of every block lies close to its double-precision twin (double_twins/): one call, a continued state, and
// the state itself.
//
// The bound: distance() measures in units of 2^-24 sqrt(n) times the largest value, the typical error of one serial
// float32 sum of n terms, n the longest contraction of the block. A value passes through some ten such stages, each of
// which passes the errors before it on with a gain around 1, so a distance of a few units is what rounding explains.
// A wrong epsilon, base, sign or window lies orders of magnitude above; the last tests hold that against the bound.
#include <catch2/catch.hpp>

#include "closeness.h"
#include "double_twins/cases.h"

namespace samba {
namespace {

using twin::Doubles;
using twin::Tensors;
using twin::to_doubles;
using twin::TwinCase;

constexpr double kBound = 8.0;

void check_close(std::span<const float> got, const Doubles& want, const TwinCase& of, const std::string& what) {
  const double found = distance(got, std::span<const double>(want), of.chain());
  INFO(what << ": distance " << found << ", bound " << kBound);
  CHECK(found <= kBound);
}

// The part of y (batch, length, width) that holds the positions [from, to).
Doubles rows_of(const Doubles& y, const TwinCase& of, Index from, Index to) {
  Doubles part;
  for (Index b = 0; b < of.batch; ++b) {
    const auto row = y.begin() + (b * of.length + from) * of.d_model;
    part.insert(part.end(), row, row + (to - from) * of.d_model);
  }
  return part;
}

std::vector<float> to_floats(const Doubles& values) { return {values.begin(), values.end()}; }

void check_state(const TwinCase& of, const ModuleState& state, const Tensors& weights, const Tensors& want) {
  const Tensors got = of.twin->state_of(weights, to_doubles(state.pieces()), state.counters(), of.batch);
  for (const auto& [name, values] : want) check_close(to_floats(got.at(name)), values, of, "state " + name);
}

BlockModule make_module(Executor& executor, const TwinCase& of, const ArrayMap& weights) {
  return {executor, of.kind, of.options, views(weights)};
}

}  // namespace

TEST_CASE("Every block gives the outputs of its double-precision twin") {
  for (const auto& executor : every_executor()) {
    for (const TwinCase& of : twin::every_case()) {
      INFO(of.name << " on " << executor->name() << " " << executor->instruction_set());
      const ArrayMap weights = twin::model_weights(of);
      const Array x = twin::model_input(of, 300);
      BlockModule module = make_module(*executor, of, weights);
      const Doubles want = of.twin->forward(to_doubles(weights), to_doubles(x.floats()), of.batch, of.length);
      check_close(module.forward(x).floats(), want, of, "y");
    }
  }
}

TEST_CASE("A sequence continued from a state that is not empty follows the twin, call by call, and so does the state") {
  for (const auto& executor : every_executor()) {
    for (const TwinCase& of : twin::every_case()) {
      INFO(of.name << " on " << executor->name() << " " << executor->instruction_set());
      const ArrayMap weights = twin::model_weights(of);
      const Tensors double_weights = to_doubles(weights);
      const Array x = twin::model_input(of, 301);
      BlockModule module = make_module(*executor, of, weights);
      const auto state = module.allocate_state(of.batch, of.tokens_before + of.length + 1);
      twin::begin_sequence(of, *state);
      Tensors twin_state = of.twin->state_of(double_weights, to_doubles(state->pieces()), state->counters(), of.batch);
      const Doubles want = of.twin->forward(double_weights, to_doubles(x.floats()), of.batch, of.length, twin_state);
      Index at = 0;
      for (const Index to : {of.length - 3, of.length - 2, of.length - 1, of.length}) {
        const Array part = positions(x, at, to);
        const Array y = to - at == 1 ? module.step(part, *state) : module.forward(part, *state);
        check_close(y.floats(), rows_of(want, of, at, to), of, "y of a call");
        at = to;
      }
      check_state(of, *state, double_weights, twin_state);
    }
  }
}

TEST_CASE("Under fixed15_v1 a transformer block keeps to its twin within the step of its codes") {
  // The largest value of a row has a code of 14 bits, so a code is wrong by up to 2^-14 of it: the typical error of a
  // product is 2^10 times that of float32, and so is the bound. The block must also lie beyond the float32 bound.
  for (const auto& executor : every_executor()) {
    for (TwinCase of : twin::transformer_cases()) {
      INFO(of.name << " on " << executor->name() << " " << executor->instruction_set());
      of.options["numeric_profile"] = "fixed15_v1";
      const ArrayMap weights = twin::model_weights(of);
      const Array x = twin::model_input(of, 300);
      BlockModule module = make_module(*executor, of, weights);
      const Doubles want = of.twin->forward(to_doubles(weights), to_doubles(x.floats()), of.batch, of.length);
      const double found = distance(module.forward(x).floats(), std::span<const double>(want), of.chain()) / 1024.0;
      INFO("distance " << found);
      CHECK(found <= kBound);
      CHECK(found > kBound / 1024.0);
    }
  }
}

TEST_CASE("Far positions lie as close as float32 angles allow") {
  // An angle near position p is a float32 product, wrong by up to p 2^-23: the scores, and the output with them, by
  // some hundred units at p = 900.
  TwinCase of = twin::transformer_case("far", twin::transformer_sizes(2, 1, 8, 16, 6), 4, 900);
  const ArrayMap weights = twin::model_weights(of);
  const Array x = twin::model_input(of, 302);
  const auto executor = make_executor("cpu");
  BlockModule module = make_module(*executor, of, weights);
  const auto state = module.allocate_state(of.batch, 910);
  twin::begin_sequence(of, *state);
  Tensors twin_state = of.twin->state_of({}, to_doubles(state->pieces()), state->counters(), of.batch);
  const Doubles want = of.twin->forward(to_doubles(weights), to_doubles(x.floats()), of.batch, of.length, twin_state);
  const double far = distance(module.forward(x, *state).floats(), std::span<const double>(want), 1);
  INFO("distance " << far);
  CHECK(far <= 128.0);
}

namespace {

// Distance between a block and the twin of another model.
double distance_to(const TwinCase& of, const twin::Twin& other) {
  const auto executor = make_executor("cpu");
  const ArrayMap weights = twin::model_weights(of);
  const Array x = twin::model_input(of, 300);
  BlockModule module = make_module(*executor, of, weights);
  const Doubles want = other.forward(to_doubles(weights), to_doubles(x.floats()), of.batch, of.length);
  return distance(module.forward(x).floats(), std::span<const double>(want), of.chain());
}

}  // namespace

TEST_CASE("The bound tells a transformer from one with another option") {
  using Change = std::function<void(TransformerOptions&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"norm_eps 2e-6", [](TransformerOptions& o) { o.norm_eps = 2e-6F; }},
      {"rope_theta 10100", [](TransformerOptions& o) { o.rope_theta = 10100.0F; }},
      {"rope_dim 4 of 6", [](TransformerOptions& o) { o.rope_dim = 4; }},
      {"window 5 for 4", [](TransformerOptions& o) { o.window = 5; }},
      {"window 3 for 4", [](TransformerOptions& o) { o.window = 3; }},
      {"offset norm", [](TransformerOptions& o) { o.norm = TransformerNorm::rmsnorm_offset; }},
      {"layernorm", [](TransformerOptions& o) { o.norm = TransformerNorm::layernorm; }},
      {"geglu", [](TransformerOptions& o) { o.mlp = TransformerMlp::geglu; }},
      {"softcap 50", [](TransformerOptions& o) { o.attn_softcap = 50.0F; }},
      {"linear rotation",
       [](TransformerOptions& o) {
         o.rope_scaling = {RopeScaling::Kind::linear, 1.01F};
       }},
  };
  const TransformerOptions base = twin::transformer_sizes(4, 2, 6, 20, 4);
  const TwinCase of = twin::transformer_case("window 4", base, 13, 6);
  for (const auto& [what, change] : changes) {
    INFO(what);
    TransformerOptions other = base;
    change(other);
    CHECK(distance_to(of, twin::TransformerTwin(other)) > 10 * kBound);
  }
}

TEST_CASE("The bound tells the two forms of GELU apart, and the limits of dt") {
  for (const TransformerMlp mlp : {TransformerMlp::gelu, TransformerMlp::geglu}) {
    TransformerOptions options = twin::transformer_sizes(4, 2, 6, 20);
    options.mlp = mlp;
    TransformerOptions other = options;
    other.mlp = mlp == TransformerMlp::gelu ? TransformerMlp::gelu_tanh : TransformerMlp::geglu_tanh;
    CHECK(distance_to(twin::transformer_case("gelu", options), twin::TransformerTwin(other)) > 10 * kBound);
  }
  TwinCase limited = twin::mamba_case("limits", "mamba2", 32, 2, 9, 0);
  limited.options = {{"dt_limit", {0.125, 0.25}}};
  CHECK(distance_to(limited, twin::Mamba2Twin(32, 0.1251, 0.25)) > 10 * kBound);
  CHECK(distance_to(limited, twin::Mamba2Twin(32, 0.125, 0.2501)) > 10 * kBound);
}

}  // namespace samba
