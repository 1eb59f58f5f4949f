#include "samba/train/model_state.h"

#include "samba/core/error.h"
#include "samba/formats/stack_archive.h"
#include "samba/model/registry.h"
#include "samba/train/state_fields.h"

namespace samba {

namespace {

using Json = nlohmann::json;
using namespace state_fields;

Json optimizer_json(const OptimizerSettings& settings) {
  Json object = {{"kind", optimizer_kind_name(settings.kind)},
                 {"lr", settings.lr},
                 {"weight_decay", settings.weight_decay},
                 {"max_norm", settings.max_norm ? Json(*settings.max_norm) : Json()},
                 {"accumulation_steps", settings.accumulation_steps},
                 {"maximize", settings.maximize}};
  if (settings.kind == OptimizerKind::sgd) {
    object["momentum"] = settings.momentum;
    object["dampening"] = settings.dampening;
    object["nesterov"] = settings.nesterov;
  } else {
    object["beta1"] = settings.beta1;
    object["beta2"] = settings.beta2;
    object["eps"] = settings.eps;
  }
  return object;
}

bool flag(const Json& optimizer, const char* name, const std::string& source) {
  const Json& value = member(optimizer, name);
  if (!value.is_boolean()) {
    refuse(source, "optimizer",
           std::string("optimizer.") + name + " must be true or false, got " + shown(optimizer, name));
  }
  return value.get<bool>();
}

OptimizerSettings parse_optimizer(const Json& optimizer, const std::string& source) {
  OptimizerSettings settings;
  const Json& kind = member(optimizer, "kind");
  if (kind != "adamw" && kind != "adam" && kind != "sgd") {
    refuse(source, "optimizer", "optimizer.kind must be adamw, adam or sgd, got " + shown(optimizer, "kind"));
  }
  settings.kind = optimizer_kind(kind.get<std::string>());
  parse_common_settings(optimizer, source, settings);
  settings.maximize = flag(optimizer, "maximize", source);
  if (settings.kind == OptimizerKind::sgd) {
    settings.momentum = number(optimizer, "momentum", source);
    settings.dampening = number(optimizer, "dampening", source);
    settings.nesterov = flag(optimizer, "nesterov", source);
  } else {
    settings.beta1 = number(optimizer, "beta1", source);
    settings.beta2 = number(optimizer, "beta2", source);
    settings.eps = number(optimizer, "eps", source);
  }
  const Json expected = optimizer_json(settings);
  for (const auto& [key, value] : optimizer.items()) {
    if (!expected.contains(key)) refuse(source, "optimizer", "optimizer has the unknown key " + shown(Json(key)));
  }
  require_settings(settings, source);
  return settings;
}

}  // namespace

ModelState model_state(const SambaTrainer& trainer) {
  ModelState state;
  state.config = trainer.stack().config();
  state.numeric_mode = numeric_mode_name(trainer.stack().executor().numeric_mode());
  state.step = trainer.completed_steps();
  state.training =
      TrainingState{trainer.completed_steps(), trainer.optimizer().settings(), trainer.optimizer().schedule(),
                    GeneratorState{trainer.generator().seed(), trainer.generator().counter()}};
  return state;
}

bool fits_samba_archive(const ModelState& state) {
  return state.config.samba && state.training && state.training->optimizer.kind == OptimizerKind::adamw &&
         !state.training->optimizer.maximize && state.numeric_mode == "identical";
}

Json stack_state_json(const ModelState& state, WeightFormat format) {
  Json object = {
      {"schema", kStackStateSchema},
      {"profile", state.config.profile == StackProfile::fp32_v2 ? profile_name(state.config) : kStackProfile},
      {"numeric_mode", state.numeric_mode},
      {"config", config_to_json(state.config)},
      {"step", state.step},
      {"weight_format", weight_format_name(format)},
      {"optimizer", nullptr},
      {"schedule", nullptr},
      {"rng", nullptr}};
  if (state.training) {
    object["optimizer"] = optimizer_json(state.training->optimizer);
    if (state.training->schedule) object["schedule"] = state.training->schedule->to_json();
    object["rng"] = {{"seed", state.training->generator.seed}, {"counter", state.training->generator.counter}};
  }
  return object;
}

ModelState parse_stack_state(const Json& state, const std::string& source, bool for_training) {
  ModelState parsed;
  try {
    parsed.config = stack_config_from_json(state["config"], "/config");
  } catch (const Error& error) {
    refuse(source, "config", error.what());
  }
  parsed.numeric_mode = state["numeric_mode"].get<std::string>();
  parsed.step = state["step"].get<Index>();
  if (for_training && state["optimizer"].is_object()) {
    parsed.training = TrainingState{parsed.step, parse_optimizer(state["optimizer"], source),
                                    parse_schedule(state["schedule"], source), parse_generator(state["rng"], source)};
  }
  return parsed;
}

void require_trained_mode(const std::string& trained, NumericMode mode, const std::string& source) {
  const std::string wanted(numeric_mode_name(mode));
  if (trained == wanted) return;
  throw Error(ErrorKind::value, "numeric_mode",
              source + ": it was trained in the numeric mode " + trained + ", this run is " + wanted +
                  "; go on with --numeric-mode " + trained);
}

std::vector<std::string> moment_prefixes(OptimizerKind kind) {
  if (kind == OptimizerKind::sgd) return {"exp_avg."};
  return {"exp_avg.", "exp_avg_sq."};
}

}  // namespace samba
