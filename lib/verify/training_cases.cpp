// The kinds of test/golden/samba without a stack: loss, clipping, optimizers, schedules, and initial values (spec 61,
// spec 60 section 3).
#include "samba/model/loss.h"
#include "samba/model/samba_stack.h"
#include "samba/numerics/generator.h"
#include "samba/train/clip.h"
#include "samba/train/optimizer.h"
#include "samba/train/schedule.h"
#include "samba/verify/kinds.h"
#include "samba/verify/training.h"

namespace samba::verify {
namespace {

Array one_float(float value) { return Array::from_floats({1}, std::span(&value, 1)); }

Array floats_of(std::span<const float> values) {
  return Array::from_floats({static_cast<Index>(values.size())}, values);
}

Array flat_of(const RunContext& run, const json& names) {
  std::vector<float> values;
  for (const json& name : names) {
    const auto part = run.tensor(name.get<std::string>()).floats();
    values.insert(values.end(), part.begin(), part.end());
  }
  return floats_of(values);
}

void check_scalars(RunContext& run, const json& expected, const StepScalars& scalars, const std::string& where) {
  const std::pair<const char*, float> values[] = {{"beta1_pow_t", scalars.beta1_pow_t},
                                                  {"beta2_pow_t", scalars.beta2_pow_t},
                                                  {"bc1", scalars.bias1},
                                                  {"bc2", scalars.bias2},
                                                  {"c1", scalars.adam.c1},
                                                  {"c2", scalars.adam.c2},
                                                  {"rt_bc2", scalars.adam.root_bias2},
                                                  {"step_size", scalars.adam.step},
                                                  {"decay_mul", scalars.adam.decay}};
  for (const auto& [name, value] : values) run.check.bits(where + "/scalars/" + name, value, expected.at(name));
}

void check_clip_stages(RunContext& run, const ClipReport& clip, const std::string& t) {
  run.expect_if_there("stage.clip_sumsq." + t, floats_of(clip.sums_of_squares));
  run.expect_if_there("stage.clip_norm." + t, floats_of(clip.norms));
  const float total[] = {clip.total_sum, clip.total_norm, clip.coefficient};
  run.expect_if_there("stage.clip_total." + t, floats_of(total));
}

// maximize flips the gradient behind the clipping, and the recorded gradient is the one before the flip.
void check_optimizer_step(RunContext& run, Optimizer& optimizer, DeviceFloats& parameters, const json& step) {
  const std::string where = "steps/" + step.at("t").dump();
  const std::string t = "t" + step.at("t").dump();
  const Index total = optimizer.total();
  DeviceFloats gradient(run.executor, flat_of(run, step.at("grads")));
  const StepReport report = optimizer.step(parameters, gradient);
  run.check.integer(where + "/t", report.t, step.at("t").get<Index>());
  run.check.bits(where + "/lr", report.lr, step.at("lr_bits"));
  if (report.clip) {
    check_clip_stages(run, *report.clip, t);
    run.check.bits(where + "/total_norm", report.clip->total_norm, step.at("total_norm_bits"));
  } else {
    run.check.holds(where + "/total_norm", step.at("total_norm_bits").is_null(), "no norm was computed");
  }
  if (step.contains("scalars_bits")) check_scalars(run, step["scalars_bits"], report.scalars, where);
  if (step.contains("clipped_grad")) run.expect(step["clipped_grad"], gradient.array({total}));
  const auto compare = [&](const char* name, const float* device) {
    Array host = Array::zeros({total});
    run.executor.memory().copy_to_host(host.data(), device, host.byte_size());
    if (step.contains(name)) run.expect(step[name], host);
    const std::string digest = std::string(name) + "_sha256";
    if (step.contains(digest)) run.check.sha256(where + "/" + name, host, step[digest]);
  };
  compare("params", parameters);
  compare("exp_avg", optimizer.exp_avg());
  if (optimizer.exp_avg_sq() != nullptr) compare("exp_avg_sq", optimizer.exp_avg_sq());
}

}  // namespace

CrossEntropyOptions cross_entropy_options(const json& options) {
  CrossEntropyOptions parsed;
  parsed.ignore_index = options.value("ignore_index", parsed.ignore_index);
  const std::string reduction = options.value("reduction", "mean");
  parsed.reduction = reduction == "none" ? Reduction::none : reduction == "sum" ? Reduction::sum : Reduction::mean;
  parsed.label_smoothing = options.value("label_smoothing", 0.0);
  if (options.contains("num_items") && !options["num_items"].is_null()) {
    parsed.num_items = options["num_items"].get<Index>();
  }
  return parsed;
}

OptimizerSettings optimizer_settings(const json& options) {
  OptimizerSettings settings = OptimizerSettings::defaults(optimizer_kind(options.value("algorithm", "adamw")));
  const auto take = [&](const char* name, double& value) {
    if (options.contains(name)) value = number_of(options[name]);
  };
  take("lr", settings.lr);
  take("beta1", settings.beta1);
  take("beta2", settings.beta2);
  take("eps", settings.eps);
  take("weight_decay", settings.weight_decay);
  take("momentum", settings.momentum);
  take("dampening", settings.dampening);
  settings.nesterov = options.value("nesterov", false);
  settings.maximize = options.value("maximize", false);
  if (options.contains("max_norm") && !options["max_norm"].is_null()) {
    settings.max_norm = number_of(options["max_norm"]);
  }
  settings.accumulation_steps = options.value("accumulation_steps", Index{1});
  return settings;
}

std::optional<Schedule> optional_schedule(const json& options) {
  if (!options.contains("schedule") || options["schedule"].is_null()) return std::nullopt;
  return schedule_from_json(options["schedule"]);
}

void run_cross_entropy(RunContext& run) {
  const json& options = run.body().at("options");
  CrossEntropyIntermediates stages;
  const CrossEntropyResult result = cross_entropy(run.executor, run.tensor("in.logits"), run.tensor("in.targets"),
                                                  cross_entropy_options(options), &stages);
  run.expect_if_there("stage.max", stages.max);
  run.expect_if_there("stage.shift", stages.shift);
  run.expect_if_there("stage.exp", stages.exponentials);
  run.expect_if_there("stage.denom", stages.denominator);
  run.expect_if_there("stage.logdenom", stages.log_denominator);
  run.expect("out.row_loss", result.row_loss);
  if (options.at("reduction") == "none") {
    run.check.holds("out.loss", !result.loss && !result.gradient, "reduction none has no loss and no gradient");
    return;
  }
  run.expect("out.loss", one_float(result.loss.value()));
  run.expect("grad.logits", result.gradient.value());
}

void run_clip_grad_norm(RunContext& run) {
  const auto sizes = run.body().at("dims").at("sizes").get<std::vector<Index>>();
  const Array& given = run.tensor("in.grad");
  DeviceFloats gradient(run.executor, given);
  const ClipReport clip =
      clip_grad_norm(run.executor, sizes, number_of(run.body().at("options").at("max_norm")), gradient);
  run.expect_if_there("stage.sumsq", floats_of(clip.sums_of_squares));
  run.expect_if_there("stage.norm", floats_of(clip.norms));
  const float total[] = {clip.total_sum, clip.total_norm, clip.coefficient};
  run.expect_if_there("stage.total_sumsq_norm_coef", floats_of(total));
  run.expect("out.total_norm", one_float(clip.total_norm));
  run.expect("out.grad", gradient.array(given.shape()));
}

void run_chunked_lm_head_loss(RunContext& run) {
  const ChunkedHeadResult result =
      chunked_lm_head_loss(run.executor, run.tensor("in.hidden"), run.tensor("w.weight"), run.tensor("in.targets"));
  run.expect("out.loss", one_float(result.loss));
  run.expect("grad.hidden", result.d_hidden);
  run.expect("grad.weight", result.d_weight);
}

void run_optimizer(RunContext& run) {
  const json& body = run.body();
  std::vector<Index> sizes;
  for (const json& shape : body.at("dims").at("shapes")) sizes.push_back(element_count(shape.get<Shape>()));
  Optimizer optimizer(run.executor, sizes, optimizer_settings(body.at("options")),
                      optional_schedule(body.at("options")));
  DeviceFloats parameters(run.executor, flat_of(run, body.at("params")));
  for (const json& step : body.at("steps")) check_optimizer_step(run, optimizer, parameters, step);
  run.check.text("buf_initialized", json(optimizer.buffer_initialized()).dump(),
                 body.at("expect").at("buf_initialized").dump());
}

void run_schedules(RunContext& run) {
  for (const json& entry : run.body().at("schedules")) {
    const Schedule schedule = schedule_from_json(entry.at("options"));
    run.check.text(entry.at("lr").get<std::string>() + " config", schedule.to_json().dump(), entry.at("config").dump());
    const Array& steps = run.tensor(entry.at("t"));
    Array rates = Array::zeros(steps.shape());
    for (std::size_t i = 0; i < rates.floats().size(); ++i) {
      rates.floats()[i] = schedule.at(steps.values<std::int64_t>()[i]);
    }
    run.expect(entry.at("lr"), rates);
  }
}

void run_init(RunContext& run) {
  for (const json& entry : run.body().at("stacks")) {
    Generator generator(entry.at("seed").get<std::uint64_t>());
    const SambaStack stack(run.executor, config_from_json(entry.at("config")), generator);
    const ArrayMap weights = stack.weights();
    const auto& tensors = stack.registry().tensors();
    run.check.integer("number of tensors", static_cast<Index>(tensors.size()),
                      static_cast<Index>(entry.at("tensors").size()));
    for (std::size_t i = 0; i < std::min(tensors.size(), entry["tensors"].size()); ++i) {
      const json& want = entry["tensors"][i];
      run.check.text("tensor " + std::to_string(i), tensors[i].name, want.at("name"));
      const auto found = weights.find(tensors[i].name);
      if (found == weights.end()) continue;
      run.check.text(tensors[i].name + " shape", json(found->second.shape()).dump(), want.at("shape").dump());
      run.check.sha256(tensors[i].name, found->second, want.at("sha256"));
    }
    run.check.text("params_sha256", stack.parameters_sha256(), entry.at("params_sha256"));
    run.check.text("counter_after", std::to_string(generator.counter()), entry.at("counter_after").dump());
  }
}

}  // namespace samba::verify
