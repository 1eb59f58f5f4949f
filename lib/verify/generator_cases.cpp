// The generator object and what it draws (spec 10 section 9): the draws of the host, and the same by the executor.
#include "samba/numerics/generator.h"

#include <cmath>

#include "samba/verify/kinds.h"

namespace samba::verify {
namespace {

struct DrawBounds {
  bool normal = false;
  float first = 0.0F, second = 0.0F;  // low, high; mean, deviation
};

double number_or(const json& options, const char* name, double otherwise) {
  return options.contains(name) ? number_of(options[name]) : otherwise;
}

// Draws by the generator; gives the bounds with which an executor draws the same.
DrawBounds draw(Generator& generator, const std::string& op, const json& options, std::span<float> out) {
  const auto index = [&](const char* name) { return options.at(name).get<Index>(); };
  if (op == "uniform") {
    const double low = number_or(options, "low", 0.0), high = number_or(options, "high", 1.0);
    generator.uniform(out, low, high);
    return {false, static_cast<float>(low), static_cast<float>(high)};
  }
  if (op == "normal") {
    const double mean = number_or(options, "mean", 0.0), deviation = number_or(options, "std", 1.0);
    generator.normal(out, mean, deviation);
    return {true, static_cast<float>(mean), static_cast<float>(deviation)};
  }
  if (op == "kaiming_uniform") {
    const double a = number_or(options, "a", std::sqrt(5.0));
    generator.kaiming_uniform(out, index("fan_in"), a);
    const float bound = kaiming_uniform_bound(index("fan_in"), a);
    return {false, -bound, bound};
  }
  if (op == "kaiming_normal") {
    const double gain = number_or(options, "gain", std::sqrt(2.0));
    generator.kaiming_normal(out, index("fan_in"), gain);
    return {true, 0.0F, kaiming_normal_deviation(index("fan_in"), gain)};
  }
  const double gain = number_or(options, "gain", 1.0);
  if (op == "xavier_uniform") {
    generator.xavier_uniform(out, index("fan_in"), index("fan_out"), gain);
    const float bound = xavier_uniform_bound(index("fan_in"), index("fan_out"), gain);
    return {false, -bound, bound};
  }
  generator.xavier_normal(out, index("fan_in"), index("fan_out"), gain);
  return {true, 0.0F, xavier_normal_deviation(index("fan_in"), index("fan_out"), gain)};
}

void run_draw(RunContext& run, Generator& generator, const json& call) {
  const std::string name = call.at("out");
  Array host = Array::zeros(call.at("shape").get<Shape>());
  const auto stream = static_cast<std::uint32_t>(generator.counter());
  const DrawBounds bounds = draw(generator, call.at("op"), call.at("options"), host.floats());
  run.expect(name, host);
  DeviceFloats out(run.executor, host.size());
  RandomKernels& kernels = run.executor.random();
  if (bounds.normal) {
    kernels.normal(generator.seed(), stream, host.size(), bounds.first, bounds.second, out);
  } else {
    kernels.uniform(generator.seed(), stream, host.size(), bounds.first, bounds.second, out);
  }
  run.check.array(name + " by the executor", out.array(host.shape()), run.tensor(name));
}

void run_dropout(RunContext& run, Generator& generator, const json& call) {
  const std::string op = call.at("op");
  const json& options = call.at("options");
  const bool residual = op.starts_with("residual");
  DropoutKey key;
  const DropoutScale scale =
      residual ? residual_dropout_scale(number_of(options.at("p"))) : dropout_scale(number_of(options.at("p")));
  key.p = scale.p;
  key.scale = scale.scale;
  key.offset = options.value("offset", std::uint64_t{0});
  key.seed = residual ? options.at("seed").get<std::uint64_t>() : generator.seed();
  key.stream = options.at("stream").get<std::uint32_t>();
  if (op == "dropout" && call.at("counter_after").get<std::uint64_t>() != generator.counter()) {
    run.check.integer(op + " takes the next stream", generator.next_stream(), key.stream);
  }
  const Array& x = run.tensor(call.contains("x") ? call["x"] : call.at("grad_output"));
  DeviceFloats values(run.executor, x);
  DeviceFloats out(run.executor, x.size());
  if (op == "residual_dropout") {
    DeviceFloats added(run.executor, run.tensor(call.at("residual")));
    run.executor.random().residual_dropout(key, x.size(), values, added, out);
  } else {
    run.executor.random().dropout(key, x.size(), values, out);
  }
  run.expect(call.at("out"), out.array(x.shape()));
}

}  // namespace

void run_generator(RunContext& run) {
  Generator generator(run.body().at("options").at("seed").get<std::uint64_t>());
  for (const json& call : run.body().at("calls")) {
    const std::string op = call.at("op");
    if (call.contains("load_before")) {
      generator.restore({call["load_before"].at("seed").get<std::uint64_t>(),
                         call["load_before"].at("counter").get<std::uint64_t>()});
    }
    if (op == "next_stream") {
      const json& before = run.body().at("expect").at("state_before_next_stream");
      run.check.text("seed before next_stream", std::to_string(generator.seed()), before.at("seed").dump());
      run.check.text("counter before next_stream", std::to_string(generator.counter()), before.at("counter").dump());
      Array stream(DType::int64, {1});
      stream.values<std::int64_t>()[0] = generator.next_stream();
      run.expect(call.at("out"), stream);
    } else if (op.find("dropout") != std::string::npos) {
      run_dropout(run, generator, call);
    } else {
      run_draw(run, generator, call);
    }
    run.check.text(call.at("out").get<std::string>() + ": counter_after", std::to_string(generator.counter()),
                   call.at("counter_after").dump());
  }
}

}  // namespace samba::verify
