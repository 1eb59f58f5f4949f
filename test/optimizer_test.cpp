// Optimizers: refusals change nothing and name what is wrong; the scalars; accumulation (spec 61 sections 2, 3, 5).
#include "samba/train/optimizer.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "bits.h"
#include "samba/backends/registry.h"
#include "samba/core/error.h"
#include "samba/train/accumulate.h"

using namespace samba;

namespace {

struct Buffers {
  Buffers(Executor& executor, std::vector<float> p, std::vector<float> g)
      : parameters(executor.memory(), static_cast<Index>(p.size())),
        gradient(executor.memory(), static_cast<Index>(g.size())) {
    parameters.upload(p.data());
    gradient.upload(g.data());
  }
  DeviceArray<float> parameters, gradient;
};

std::vector<float> download(Executor& executor, const float* device, std::size_t count) {
  std::vector<float> host(count);
  executor.memory().copy_to_host(host.data(), device, count * sizeof(float));
  return host;
}

std::string refusal(const OptimizerSettings& settings) {
  try {
    check_settings(settings);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::value);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a step with a non-finite value is refused by buffer and index, and changes nothing") {
  const auto executor = make_executor("reference");
  const std::vector<float> p = {1, 2, 3}, g = {0.5F, -0.5F, 4};
  OptimizerSettings settings;
  settings.max_norm = 1.0;
  Optimizer optimizer(*executor, {2, 1}, settings);
  Buffers buffers(*executor, p, g);
  optimizer.step(buffers.parameters.data(), buffers.gradient.data());

  const auto p1 = download(*executor, buffers.parameters.data(), 3);
  const auto m1 = download(*executor, optimizer.exp_avg(), 3);
  const auto v1 = download(*executor, optimizer.exp_avg_sq(), 3);
  const auto refused = [&](float* buffer, Index index, float value, const char* words) {
    buffers.gradient.upload(g.data());
    float old = 0.0F;
    executor->memory().copy_to_host(&old, buffer + index, sizeof old);
    executor->memory().copy_to_device(buffer + index, &value, sizeof value);
    try {
      optimizer.step(buffers.parameters.data(), buffers.gradient.data());
      FAIL_CHECK("was not refused: " << words);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::value);
      CHECK(error.error_class() == "non_finite");
      CHECK(std::string(error.what()) == words);
    }
    executor->memory().copy_to_device(buffer + index, &old, sizeof old);
    CHECK(bits_equal(download(*executor, buffers.parameters.data(), 3), p1));
    CHECK(bits_equal(download(*executor, optimizer.exp_avg(), 3), m1));
    CHECK(bits_equal(download(*executor, optimizer.exp_avg_sq(), 3), v1));
    CHECK(optimizer.completed_steps() == 1);
  };
  refused(buffers.parameters.data(), 1, kQuietNan, "input.param is NaN at flat index 1");
  refused(buffers.gradient.data(), 2, -kInfinity, "input.grad is infinity at flat index 2");
  refused(optimizer.exp_avg(), 0, kQuietNan, "state.m is NaN at flat index 0");
  refused(optimizer.exp_avg_sq(), 2, kInfinity, "state.v is infinity at flat index 2");
}

TEST_CASE("a gradient whose norm overflows is refused and left as it was") {
  const auto executor = make_executor("reference");
  const std::vector<float> g = {3e38F, 3e38F, 1.0F};
  Buffers buffers(*executor, {1, 2, 3}, g);
  const std::vector<Index> sizes = {2, 1};
  CHECK_THROWS_WITH(clip_grad_norm(*executor, sizes, 1.0, buffers.gradient.data()), Catch::Contains("clip.total_norm"));
  CHECK(bits_equal(download(*executor, buffers.gradient.data(), 3), g));
  CHECK_THROWS_WITH(clip_grad_norm(*executor, sizes, 0.0, buffers.gradient.data()), Catch::Contains("max_norm"));
}

TEST_CASE("clipping by a large limit still flushes subnormals") {
  const auto executor = make_executor("reference");
  Buffers buffers(*executor, {0, 0}, {1e-40F, 1.0F});
  const std::vector<Index> sizes = {2};
  const ClipReport report = clip_grad_norm(*executor, sizes, 100.0, buffers.gradient.data());
  CHECK(report.coefficient == 1.0F);
  CHECK(bits_equal(download(*executor, buffers.gradient.data(), 2), std::vector<float>{0.0F, 1.0F}));
}

// Powers of two over 1e-6 (0x358637BD), so that every other small number gives other bits.
TEST_CASE("the small number below the limit of a clip has the bits of 1e-6") {
  CHECK(to_bits(clip_report({0.0F}, 0x1p-21).coefficient) == 0x3EF42400U);
  CHECK(to_bits(clip_report({0x1p-40F}, 0x1p-21).coefficient) == 0x3E79EE02U);
}

TEST_CASE("hyperparameters are refused by name") {
  const auto with = [](auto member, auto value) {
    OptimizerSettings settings;
    settings.*member = value;
    return refusal(settings);
  };
  const double nan = std::nan("");
  CHECK_THAT(with(&OptimizerSettings::lr, nan), Catch::StartsWith("lr "));
  CHECK_THAT(with(&OptimizerSettings::weight_decay, INFINITY), Catch::StartsWith("weight_decay "));
  CHECK_THAT(with(&OptimizerSettings::beta1, 1.0), Catch::StartsWith("beta1 "));
  CHECK_THAT(with(&OptimizerSettings::beta2, -0.1), Catch::StartsWith("beta2 "));
  CHECK_THAT(with(&OptimizerSettings::eps, -1e-8), Catch::StartsWith("eps "));
  CHECK_THAT(with(&OptimizerSettings::max_norm, 0.0), Catch::StartsWith("max_norm "));
  CHECK_THAT(with(&OptimizerSettings::max_norm, nan), Catch::StartsWith("max_norm "));
  for (const Index steps : {0, -2, 3, 6}) {
    CHECK_THAT(with(&OptimizerSettings::accumulation_steps, steps), Catch::StartsWith("accumulation_steps "));
  }
  OptimizerSettings sgd = OptimizerSettings::defaults(OptimizerKind::sgd);
  sgd.nesterov = true;
  CHECK_THAT(refusal(sgd), Catch::StartsWith("nesterov "));
  sgd.momentum = 0.9;
  CHECK(refusal(sgd).empty());
  sgd.dampening = 0.1;
  CHECK_THAT(refusal(sgd), Catch::StartsWith("nesterov "));
  sgd.momentum = nan;
  CHECK_THAT(refusal(sgd), Catch::StartsWith("momentum "));
  CHECK_THROWS_WITH(optimizer_kind("lion"), Catch::Contains("adamw") && Catch::Contains("lion"));
  CHECK(OptimizerSettings::defaults(OptimizerKind::adam).weight_decay == 0.0);
  CHECK(OptimizerSettings::defaults(OptimizerKind::adamw).weight_decay == 0.01);

  const auto executor = make_executor("reference");
  CHECK_THROWS_WITH(Optimizer(*executor, {}, {}), Catch::Contains("empty"));
  CHECK_THROWS_WITH(Optimizer(*executor, {3, 0}, {}), Catch::Contains("parameter 1 is empty"));
}

TEST_CASE("beta to the t is computed by squaring, not as a running product") {
  OptimizerSettings settings;
  const auto beta = static_cast<float>(settings.beta1);
  float running = 1.0F;
  for (int t = 1; t <= 7; ++t) running *= beta;
  const StepScalars scalars = step_scalars(settings, 0.001F, 7);
  CHECK(to_bits(scalars.beta1_pow_t) != to_bits(running));
  const float square = beta * beta;
  CHECK(to_bits(scalars.beta1_pow_t) == to_bits(beta * square * (square * square)));
  CHECK(to_bits(scalars.adam.c1) == 0x3DCCCCD0U);
  CHECK(to_bits(scalars.adam.c2) == 0x3A831200U);
}

TEST_CASE("a schedule's value becomes the stored learning rate") {
  const auto executor = make_executor("reference");
  Optimizer optimizer(*executor, {1}, {}, Schedule({"constant", 0.1, 0.0, 4, std::nullopt}));
  Buffers buffers(*executor, {1}, {1});
  CHECK(optimizer.settings().lr == 1e-3);
  const StepReport report = optimizer.step(buffers.parameters.data(), buffers.gradient.data());
  CHECK(report.lr == 0.025F);
  CHECK(optimizer.settings().lr == static_cast<double>(0.025F));
  CHECK_FALSE(report.clip.has_value());
}

TEST_CASE("an accumulated step is the step of the tree sum, and a wrong split is refused") {
  const auto executor = make_executor("reference");
  OptimizerSettings settings;
  settings.accumulation_steps = 4;
  const std::vector<std::vector<float>> parts = {{1, 1e-8F}, {1e8F, 2}, {-1e8F, 1e-40F}, {0.25F, 3}};
  std::vector<DeviceArray<float>> storage;
  std::vector<float*> pointers;
  for (const auto& part : parts) {
    storage.emplace_back(executor->memory(), 2);
    storage.back().upload(part.data());
    pointers.push_back(storage.back().data());
  }
  Optimizer accumulated(*executor, {2}, settings);
  Buffers buffers(*executor, {1, 1}, {add(add(1, 1e8F), add(-1e8F, 0.25F)), add(add(1e-8F, 2), add(1e-40F, 3))});
  CHECK_THROWS_WITH(accumulated.step_accumulated(buffers.parameters.data(), std::span(pointers).first(2), 512),
                    Catch::Contains("accumulation_steps"));
  CHECK_THROWS_WITH(accumulated.step_accumulated(buffers.parameters.data(), pointers, 384),
                    Catch::Contains("misaligned"));
  CHECK(accumulated.completed_steps() == 0);
  accumulated.step_accumulated(buffers.parameters.data(), pointers, 512);
  const auto together = download(*executor, buffers.parameters.data(), 2);

  settings.accumulation_steps = 1;
  Optimizer single(*executor, {2}, settings);
  const std::vector<float> start = {1, 1};
  buffers.parameters.upload(start.data());
  single.step(buffers.parameters.data(), buffers.gradient.data());
  CHECK(bits_equal(together, download(*executor, buffers.parameters.data(), 2)));
}

TEST_CASE("momentum buffers start with the first gradient, one flag a tensor") {
  const auto executor = make_executor("reference");
  OptimizerSettings settings = OptimizerSettings::defaults(OptimizerKind::sgd);
  settings.momentum = 0.9;
  settings.dampening = 0.5;
  Optimizer optimizer(*executor, {1, 2}, settings);
  CHECK(optimizer.exp_avg_sq() == nullptr);
  CHECK(optimizer.buffer_initialized() == std::vector<std::int32_t>{0, 0});
  Buffers buffers(*executor, {1, 1, 1}, {2, 4, 8});
  optimizer.step(buffers.parameters.data(), buffers.gradient.data());
  CHECK(bits_equal(download(*executor, optimizer.exp_avg(), 3), std::vector<float>{2, 4, 8}));
  CHECK(optimizer.buffer_initialized() == std::vector<std::int32_t>{1, 1});
  Optimizer plain(*executor, {3}, OptimizerSettings::defaults(OptimizerKind::sgd));
  plain.step(buffers.parameters.data(), buffers.gradient.data());
  CHECK(bits_equal(download(*executor, plain.exp_avg(), 3), std::vector<float>{0, 0, 0}));
  CHECK(plain.buffer_initialized() == std::vector<std::int32_t>{0});
}
