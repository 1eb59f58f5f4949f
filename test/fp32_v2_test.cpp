// samba.fp32.v2 (docs/spec-extensions.md section 2): the gradient of Mamba-3 with matrix products.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "double_twins/cases.h"
#include "double_twins/slopes.h"
#include "samba/core/error.h"
#include "samba/formats/stack_archive.h"
#include "samba/model/samba_stack.h"
#include "samba/train/model_state.h"
#include "small_stack.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using twin::Doubles;
using twin::Tensors;
using twin::TwinCase;

constexpr double kBound = 8.0;  // as in double_twin_gradient_test.cpp

struct Gradients {
  Array x;
  ArrayMap weights;
};

Gradients gradients_of(Executor& executor, const TwinCase& of, Mamba3Block::Gradient arithmetic,
                       const ArrayMap& weights, const Array& x, const Array& dy) {
  Mamba3Block block(executor, of.d_model, arithmetic);
  std::vector<WeightView> bound;
  Gradients result{Array(DType::float32, x.shape()), {}};
  std::vector<float*> pointers;
  for (const WeightSpec& spec : block.weight_specs()) {
    bound.push_back(weights.at(spec.name).floats().data());
    Array& array = result.weights.emplace(spec.name, Array(DType::float32, spec.shape)).first->second;
    pointers.push_back(array.floats().data());
  }
  block.bind_weights(bound);
  Workspace workspace(executor.memory());
  block.backward(of.batch, of.length, x.floats().data(), dy.floats().data(), result.x.floats().data(), pointers,
                 workspace, nullptr);
  return result;
}

std::vector<TwinCase> mamba3_cases() {
  return {twin::mamba_case("short", "mamba3", 32, 2, 9, 0), twin::mamba_case("one token", "mamba3", 32, 3, 1, 0),
          twin::mamba_case("two heads, a whole chunk", "mamba3", 64, 1, 64, 0),
          twin::mamba_case("three chunks", "mamba3", 32, 1, 135, 0)};
}

TEST_CASE("The gradients of samba.fp32.v2 are the slopes of the double-precision twin") {
  const auto cpu = make_executor("cpu");
  for (const TwinCase& of : mamba3_cases()) {
    INFO(of.name);
    const ArrayMap weights = twin::model_weights(of, 20);
    const Array x = twin::model_input(of, 310);
    const Array dy = drawn(311, x.shape());
    Gradients got = gradients_of(*cpu, of, Mamba3Block::Gradient::matrix_products, weights, x, dy);

    Tensors values = twin::to_doubles(weights);
    Doubles input = twin::to_doubles(x.floats());
    const Doubles cotangent = twin::to_doubles(dy.floats());
    const auto loss = [&] {
      const Doubles y = of.twin->forward(values, input, of.batch, of.length);
      double sum = 0.0;
      for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * cotangent[i];
      return sum;
    };
    const std::size_t chain = std::max(of.chain(), static_cast<std::size_t>(of.batch * of.length));
    const twin::SlopeTests tests = of.length > 60 ? twin::SlopeTests{1, 1} : twin::SlopeTests{2, 4};
    twin::check_slopes(loss, input, got.x.floats(), chain, kBound, "x", tests);
    for (const auto& [name, gradient] : got.weights) {
      twin::check_slopes(loss, values.at(name), gradient.floats(), chain, kBound, name, tests);
    }
  }
}

TEST_CASE("Where no two tokens of a chunk meet the two profiles have one gradient; elsewhere their bits differ") {
  const auto cpu = make_executor("cpu");
  for (const TwinCase& of : mamba3_cases()) {
    INFO(of.name);
    const ArrayMap weights = twin::model_weights(of, 21);
    const Array x = twin::model_input(of, 312);
    const Array dy = drawn(313, x.shape());
    const Gradients v1 = gradients_of(*cpu, of, Mamba3Block::Gradient::chains, weights, x, dy);
    const Gradients v2 = gradients_of(*cpu, of, Mamba3Block::Gradient::matrix_products, weights, x, dy);
    CHECK(bits_equal(v1.x.floats(), v2.x.floats()) == (of.length == 1));
    CHECK(bits_equal(v1.weights.at("out_proj.weight").floats(), v2.weights.at("out_proj.weight").floats()));
  }
}

json model_of(const std::string& layers) {
  return json::parse(R"({"vocab": 40, "d_model": 32, "profile": "samba.fp32.v2", "layers": )" + layers + "}");
}

TEST_CASE("The profile is chosen in the configuration, is part of it, and belongs to its checkpoints") {
  const StackConfig general = stack_config_from_json(model_of(R"([{"kind": "mamba3"}])"));
  CHECK(general.profile == StackProfile::fp32_v2);
  CHECK(profile_name(general) == "samba.fp32.v2");
  CHECK(config_to_json(general)["profile"] == "samba.fp32.v2");
  CHECK(stack_config_from_json(config_to_json(general)) == general);

  // Layers by name: the same layers as a general stack, whose checkpoints can name the profile.
  const StackConfig named = stack_config_from_json(model_of(R"(["mamba3", "mamba3"])"));
  CHECK_FALSE(named.samba.has_value());
  CHECK(named.layers.size() == 2);
  CHECK(stack_config_from_json(config_to_json(named)) == named);

  json v1 = model_of(R"(["mamba3"])");
  v1["profile"] = "samba-stack.fp32.v1";
  CHECK(stack_config_from_json(v1).samba.has_value());
  v1["profile"] = "samba.fp32.v3";
  CHECK_THROWS_WITH(stack_config_from_json(v1, "/model"),
                    Contains("/model/profile: must be one of samba-stack.fp32.v1, samba.fp32.v2"));
  json plain = model_of(R"([{"kind": "mamba3"}])");
  plain.erase("profile");
  CHECK_FALSE(config_to_json(stack_config_from_json(plain)).contains("profile"));
}

TEST_CASE("A checkpoint names the profile of its configuration, and no other") {
  ModelState state;
  state.config = stack_config_from_json(model_of(R"([{"kind": "mamba3"}])"));
  json stored = stack_state_json(state, WeightFormat::float32);
  CHECK(stored["profile"] == "samba.fp32.v2");
  CHECK(find_stack_state_fault(stored, {}, false).reason.empty());
  CHECK(parse_stack_state(stored, "file", false).config == state.config);
  stored["profile"] = "samba.stack.fp32.v1";
  CHECK_THAT(find_stack_state_fault(stored, {}, false).reason,
             Contains("samba.stack.fp32.v1") && Contains("the configuration is of samba.fp32.v2"));
  stored["profile"] = "samba.fp32.v3";
  CHECK_THAT(find_stack_state_fault(stored, {}, false).reason, Contains("samba.fp32.v2"));
}

TEST_CASE("A hybrid of samba.fp32.v2 trains to the same bits on every executor and number of threads") {
  const StackConfig config = stack_config_from_json(json::parse(R"({
    "vocab": 11, "d_model": 32, "profile": "samba.fp32.v2", "n_heads": 4, "intermediate": 20,
    "layers": ["mamba3", "attention", "mamba3"]})"));
  StackConfig chains = config;
  chains.profile = StackProfile::fp32_v1;
  std::set<std::string> digests;
  const auto train = [](Executor& executor, const StackConfig& of) {
    const auto trainer = SambaTrainer::create(executor, of, 3);
    for (Index step = 0; step < 2; ++step) {
      trainer->train_step(token_array(2, 70, 11, step), token_array(2, 70, 11, step + 1));
    }
    return training_digest(*trainer);
  };
  for (const std::string& set : instruction_sets()) {
    for (const int threads : {1, 2, 3}) {
      if (set != "scalar" || threads == 2) digests.insert(train(*make_executor("cpu", {threads, set}), config));
    }
  }
  digests.insert(train(*make_executor("reference"), config));
  CHECK(digests.size() == 1);
  CHECK_FALSE(digests.contains(train(*make_executor("cpu"), chains)));
}

}  // namespace
}  // namespace samba
