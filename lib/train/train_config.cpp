#include "samba/train/train_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/core/json_limits.h"
#include "samba/model/activation_plan.h"
#include "samba/model/registry.h"
#include "samba/numerics/fold.h"
#include "samba/train/freeze.h"
#include "samba/train/training_data.h"
#include "samba/train/window_order.h"

namespace samba {

namespace {

using nlohmann::json;

constexpr Index kMostSteps = Index{1} << 40;
constexpr Index kMostRows = 1 << 20;
constexpr Index kMostLength = 1 << 20;
constexpr Index kMostSpikeWindow = 1 << 20;

std::optional<Index> optional_count(const JsonFields& fields, const std::string& name) {
  if (!fields.has(name)) return std::nullopt;
  return fields.integer(name, std::nullopt, 1);
}

// Runs a check of another floor and puts the pointer of the object in front of its message.
template <class Check>
auto at_pointer(const std::string& pointer, const Check& check) {
  try {
    return check();
  } catch (const Error& error) {
    throw Error(ErrorKind::value, pointer + ": " + error.what());
  }
}

// Refuses a model that cannot be trained.
StackConfig read_model(const json& value) {
  StackConfig model = stack_config_from_json(value, "/model");
  if (const auto reason = inference_only_reason(model)) {
    refuse_unsupported("/model" + reason->pointer + ": " + reason->text);
  }
  return model;
}

std::string absolute_path(const std::string& path, const Path& folder) {
  return std::filesystem::absolute(folder / path).lexically_normal().string();
}

void read_weights(const JsonFields& fields, DataConfig& data) {
  if (!fields.has("weights")) return;
  const json& weights = fields.get("weights");
  if (!weights.is_array() || weights.size() != data.paths.size()) {
    fields.refuse("weights",
                  "a list of " + std::to_string(data.paths.size()) + " numbers, one for each of /data/paths");
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!weights[i].is_number() || !(weights[i].get<double>() > 0.0) || !std::isfinite(weights[i].get<double>())) {
      refuse_value("/data/weights/" + std::to_string(i) + ": must be a number > 0, got " + shown(weights[i]));
    }
    data.weights.push_back(weights[i].get<double>());
  }
  mixture_shares(data.weights);
  if (data.order != "permute.v1") {
    refuse_value("/data/weights: need /data/order permute.v1, got " + data.order);
  }
  if (!reads_token_shards(data)) {
    refuse_value("/data/weights: are of token shards, which samba prepare makes; /data/paths names text");
  }
}

DataConfig read_data(const json& value, const Path& folder) {
  const JsonFields fields(value, "/data",
                          {"paths", "weights", "order", "start_positions", "tokenizer", "evaluation_bytes"});
  DataConfig data;
  const json& paths = fields.required("paths");
  if (!paths.is_array() || paths.empty()) fields.refuse("paths", "a list of at least one file or folder");
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (!paths[i].is_string() || paths[i].get<std::string>().empty()) {
      refuse_value("/data/paths/" + std::to_string(i) + ": must be a path, got " + shown(paths[i]));
    }
    data.paths.push_back(absolute_path(paths[i].get<std::string>(), folder));
  }
  if (fields.has("start_positions")) {
    data.start_positions = absolute_path(fields.text("start_positions", ""), folder);
    data.order = fields.choice("order", "start_positions", {"start_positions", "draw.v1", "permute.v1"});
    if (data.order != "start_positions") {
      refuse_value("/data/order: " + data.order +
                   " contradicts /data/start_positions, which fixes the order; leave one out");
    }
  } else {
    data.order = fields.choice("order", "draw.v1", {"draw.v1", "permute.v1", "start_positions"});
    if (data.order == "start_positions")
      refuse_value("/data/start_positions: is required by /data/order start_positions");
  }
  read_weights(fields, data);
  if (fields.has("tokenizer")) data.tokenizer = absolute_path(fields.text("tokenizer", ""), folder);
  data.evaluation_bytes = fields.integer("evaluation_bytes", 0, 0);
  return data;
}

std::vector<std::string> optimizer_fields(OptimizerKind kind) {
  if (kind == OptimizerKind::sgd) {
    return {"kind", "lr", "momentum", "dampening", "nesterov", "weight_decay", "max_norm"};
  }
  return {"kind", "lr", "beta1", "beta2", "eps", "weight_decay", "max_norm"};
}

OptimizerKind read_optimizer_kind(const json& value, const StackConfig& model) {
  // The Samba archive knows adamw alone.
  const std::vector<std::string> kinds =
      model.samba ? std::vector<std::string>{"adamw"} : std::vector<std::string>{"adamw", "adam", "sgd"};
  const auto given = value.find("kind");
  if (!value.is_object() || given == value.end()) return OptimizerKind::adamw;
  for (const std::string& name : kinds) {
    if (*given == name) return optimizer_kind(name);
  }
  refuse_choice("/optimizer/kind", *given, kinds);
}

void read_moments(const JsonFields& fields, OptimizerSettings& settings) {
  settings.beta1 = fields.number("beta1", settings.beta1);
  settings.beta2 = fields.number("beta2", settings.beta2);
  settings.eps = fields.number("eps", settings.eps);
  for (const char* name : {"beta1", "beta2"}) {
    const double beta = std::string(name) == "beta1" ? settings.beta1 : settings.beta2;
    if (beta < 0.0 || static_cast<float>(beta) >= 1.0F) fields.refuse(name, "a number in [0, 1)");
  }
  if (settings.eps < 0.0) fields.refuse("eps", "a number >= 0");
}

void read_momentum(const JsonFields& fields, OptimizerSettings& settings) {
  settings.momentum = fields.number("momentum", settings.momentum);
  settings.dampening = fields.number("dampening", settings.dampening);
  settings.nesterov = fields.boolean("nesterov", settings.nesterov);
  if (settings.momentum < 0.0) fields.refuse("momentum", "a number >= 0");
}

OptimizerSettings read_optimizer(const json& value, Index accumulation_steps, const StackConfig& model) {
  const OptimizerKind kind = read_optimizer_kind(value, model);
  const JsonFields fields(value, "/optimizer", optimizer_fields(kind));
  OptimizerSettings settings = OptimizerSettings::defaults(kind);
  settings.lr = fields.number("lr", settings.lr);
  if (kind == OptimizerKind::sgd) {
    read_momentum(fields, settings);
  } else {
    read_moments(fields, settings);
  }
  settings.weight_decay = fields.number("weight_decay", settings.weight_decay);
  if (fields.has("max_norm")) {
    settings.max_norm = fields.number("max_norm", std::nullopt);
    if (*settings.max_norm <= 0.0) fields.refuse("max_norm", "a number > 0, or null");
  }
  settings.accumulation_steps = accumulation_steps;
  at_pointer("/optimizer", [&] { check_settings(settings); });
  return settings;
}

std::optional<Schedule> read_schedule(const json& value) {
  if (value.is_null()) return std::nullopt;
  const JsonFields fields(value, "/schedule", {"kind", "peak_lr", "min_lr", "warmup_steps", "total_steps"});
  ScheduleFields schedule;
  fields.required("kind");
  schedule.kind = fields.choice("kind", "", {"constant", "linear", "cosine"});
  schedule.peak_lr = fields.number("peak_lr", std::nullopt);
  schedule.min_lr = fields.number("min_lr", 0.0);
  if (schedule.peak_lr < 0.0) fields.refuse("peak_lr", "a number >= 0");
  if (schedule.min_lr < 0.0) fields.refuse("min_lr", "a number >= 0");
  schedule.warmup_steps = fields.integer("warmup_steps", 0, 0);
  schedule.total_steps = optional_count(fields, "total_steps");
  if (schedule.kind != "constant" && schedule.total_steps && *schedule.total_steps < schedule.warmup_steps) {
    refuse_value("/schedule/total_steps: " + std::to_string(*schedule.total_steps) +
                 " contradicts /schedule/warmup_steps " + std::to_string(schedule.warmup_steps) +
                 "; it must not be smaller");
  }
  return at_pointer("/schedule", [&] { return Schedule(schedule); });
}

BatchConfig read_batch(const json& value, Index& accumulation_steps) {
  const JsonFields fields(value, "/batch", {"rows", "length", "accumulation_steps"});
  BatchConfig batch;
  batch.rows = fields.integer("rows", batch.rows, 1, kMostRows);
  batch.length = fields.integer("length", batch.length, 1, kMostLength);
  accumulation_steps = fields.integer("accumulation_steps", 1, 1, kMostRows);
  if ((accumulation_steps & (accumulation_steps - 1)) != 0) fields.refuse("accumulation_steps", "a power of two");
  if (batch.rows % accumulation_steps != 0) {
    refuse_value("/batch/accumulation_steps: " + std::to_string(accumulation_steps) + " does not divide /batch/rows " +
                 std::to_string(batch.rows));
  }
  if (accumulation_steps > 1 && !accumulation_is_aligned(batch.rows * batch.length, accumulation_steps)) {
    refuse_value("/batch/accumulation_steps: the split of " + std::to_string(batch.rows * batch.length) +
                 " tokens (rows * length) into " + std::to_string(accumulation_steps) +
                 " is misaligned; every microbatch must be a multiple of 128 tokens");
  }
  return batch;
}

EvaluationConfig read_evaluation(const json& value) {
  const JsonFields fields(value, "/evaluation", {"every", "windows", "patience", "min_delta", "keep_best"});
  EvaluationConfig evaluation;
  evaluation.every = fields.integer("every", evaluation.every, 0);
  evaluation.windows = fields.integer("windows", evaluation.windows, 0);
  evaluation.patience = fields.integer("patience", evaluation.patience, 0);
  evaluation.min_delta = fields.number("min_delta", evaluation.min_delta);
  if (evaluation.min_delta < 0.0) fields.refuse("min_delta", "a number >= 0");
  evaluation.keep_best = fields.boolean("keep_best", evaluation.keep_best);
  for (const char* name : {"patience", "keep_best"}) {
    const bool wanted = std::string(name) == "patience" ? evaluation.patience > 0 : evaluation.keep_best;
    if (wanted && evaluation.every == 0) {
      refuse_value(std::string("/evaluation/") + name + ": needs evaluations on the way; /evaluation/every is 0");
    }
  }
  return evaluation;
}

SampleConfig read_sample(const json& value) {
  const JsonFields fields(value, "/sample", {"every", "prompt", "prompts", "tokens", "temperature"});
  SampleConfig sample;
  sample.every = fields.integer("every", sample.every, 0);
  sample.prompt = fields.text("prompt", sample.prompt);
  if (sample.prompt.empty()) fields.refuse("prompt", "a text that is not empty");
  if (fields.has("prompts")) {
    const json& prompts = fields.get("prompts");
    if (!prompts.is_array()) fields.refuse("prompts", "a list of texts");
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      if (!prompts[i].is_string() || prompts[i].get<std::string>().empty()) {
        refuse_value("/sample/prompts/" + std::to_string(i) + ": must be a text that is not empty, got " +
                     shown(prompts[i]));
      }
      sample.prompts.push_back(prompts[i].get<std::string>());
    }
  }
  sample.tokens = fields.integer("tokens", sample.tokens, 1, 1 << 16);
  sample.temperature = fields.number("temperature", sample.temperature);
  if (sample.temperature < 0.0) fields.refuse("temperature", "a number >= 0");
  return sample;
}

TrainSection read_train(const json& value, const Path& folder) {
  const JsonFields fields(value, "/train",
                          {"init_from", "freeze", "activation_budget_bytes", "spike_warning", "spike_window"});
  TrainSection train;
  if (fields.has("init_from")) {
    const std::string path = fields.text("init_from", "");
    if (path.empty()) fields.refuse("init_from", "the path of a model, or null");
    train.init_from = absolute_path(path, folder);
  }
  if (fields.has("activation_budget_bytes")) {
    train.activation_budget_bytes = fields.integer("activation_budget_bytes", std::nullopt, 0);
  }
  train.watch.deviations = fields.number("spike_warning", train.watch.deviations);
  if (train.watch.deviations < 0.0) fields.refuse("spike_warning", "a number of standard deviations, or 0 for none");
  train.watch.window = fields.integer("spike_window", train.watch.window, 2, kMostSpikeWindow);
  if (!fields.has("freeze")) return train;
  const json& patterns = fields.get("freeze");
  if (!patterns.is_array()) fields.refuse("freeze", "a list of patterns of tensor names, as \"layers.0.*\"");
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    if (!patterns[i].is_string() || patterns[i].get<std::string>().empty()) {
      refuse_value("/train/freeze/" + std::to_string(i) + ": must be a pattern of tensor names, got " +
                   shown(patterns[i]));
    }
    train.freeze.push_back(patterns[i].get<std::string>());
  }
  return train;
}

void check_activation_budget(const TrainConfig& config) {
  if (!config.train.activation_budget_bytes) return;
  const Index rows = config.batch.rows / config.optimizer.accumulation_steps;
  const Index least = least_activation_bytes(static_cast<Index>(config.model.layers.size()),
                                             rows * config.batch.length * config.model.d_model);
  if (*config.train.activation_budget_bytes >= least) return;
  refuse_value("/train/activation_budget_bytes: must be at least " + std::to_string(least) + ", the smallest tape of " +
               std::to_string(rows) + " rows of " + std::to_string(config.batch.length) + " tokens, got " +
               std::to_string(*config.train.activation_budget_bytes));
}

void check_together(const TrainConfig& config) {
  check_activation_budget(config);
  if (!config.train.freeze.empty()) frozen_tensors(Registry(config.model), config.train.freeze);
  const Index positions = position_limit(config.model);
  if (config.batch.length > positions) {
    refuse_value("/batch/length: " + std::to_string(config.batch.length) + " is more than the " +
                 std::to_string(positions) + " positions of an attention layer");
  }
  // Token shards hold out documents of their own. A path that is missing is told where the data are opened.
  const bool missing = std::any_of(config.data.paths.begin(), config.data.paths.end(), [](const std::string& path) {
    std::error_code error;
    return !std::filesystem::exists(path, error);
  });
  if (config.evaluation.every > 0 && config.data.evaluation_bytes == 0 && !reads_token_shards(config.data) &&
      !missing) {
    refuse_value("/evaluation/every: " + std::to_string(config.evaluation.every) +
                 " contradicts /data/evaluation_bytes 0: nothing is held back to evaluate on");
  }
  if (config.data.evaluation_bytes > 0 && config.data.evaluation_bytes <= config.batch.length) {
    refuse_value("/data/evaluation_bytes: " + std::to_string(config.data.evaluation_bytes) +
                 " is too short for one sequence; at least /batch/length + 1 = " +
                 std::to_string(config.batch.length + 1) + ", or 0");
  }
  if (config.sample.every > 0 && config.model.vocab < 256) {
    refuse_value("/sample/every: sample text needs the byte vocabulary; /model/vocab must be at least 256, got " +
                 std::to_string(config.model.vocab));
  }
}

}  // namespace

CheckpointConfig read_checkpoint_config(const json& value) {
  const JsonFields fields(value, "/checkpoint", {"every", "keep_last", "keep_every", "digest_every"});
  CheckpointConfig checkpoint;
  checkpoint.every = fields.integer("every", checkpoint.every, 0);
  checkpoint.keep_last = fields.integer("keep_last", checkpoint.keep_last, 0);
  checkpoint.keep_every = fields.integer("keep_every", checkpoint.keep_every, 0);
  checkpoint.digest_every = fields.integer("digest_every", checkpoint.digest_every, 0);
  return checkpoint;
}

TrainConfig parse_train_config(const json& value, const Path& folder) {
  const JsonFields fields(value, "",
                          {"model", "train", "data", "optimizer", "schedule", "batch", "checkpoint", "evaluation",
                           "sample", "steps", "seed"});
  const json empty = json::object();
  const auto section = [&](const char* name) -> const json& { return fields.has(name) ? fields.get(name) : empty; };
  TrainConfig config;
  config.model = read_model(fields.required("model"));
  config.train = read_train(section("train"), folder);
  config.data = read_data(fields.required("data"), folder);
  Index accumulation_steps = 1;
  config.batch = read_batch(section("batch"), accumulation_steps);
  config.optimizer = read_optimizer(section("optimizer"), accumulation_steps, config.model);
  config.schedule = read_schedule(fields.get("schedule"));
  config.checkpoint = read_checkpoint_config(section("checkpoint"));
  config.evaluation = read_evaluation(section("evaluation"));
  config.sample = read_sample(section("sample"));
  config.steps = fields.integer("steps", std::nullopt, 1, kMostSteps);
  config.seed = fields.unsigned_integer("seed", 0);
  check_together(config);
  return config;
}

nlohmann::ordered_json resolved_json(const TrainConfig& config) {
  const OptimizerSettings& settings = config.optimizer;
  auto result = nlohmann::ordered_json::object();
  result["seed"] = config.seed;
  result["steps"] = config.steps;
  result["model"] = config_to_ordered_json(config.model);
  result["train"]["init_from"] = config.train.init_from.empty() ? json(nullptr) : json(config.train.init_from);
  result["train"]["freeze"] = config.train.freeze;
  result["train"]["activation_budget_bytes"] =
      config.train.activation_budget_bytes ? json(*config.train.activation_budget_bytes) : json(nullptr);
  result["train"]["spike_warning"] = config.train.watch.deviations;
  result["train"]["spike_window"] = config.train.watch.window;
  result["data"] = {{"paths", config.data.paths}, {"order", config.data.order}};
  result["data"]["weights"] = config.data.weights.empty() ? json(nullptr) : json(config.data.weights);
  result["data"]["start_positions"] =
      config.data.start_positions.empty() ? json(nullptr) : json(config.data.start_positions);
  result["data"]["tokenizer"] = config.data.tokenizer.empty() ? json(nullptr) : json(config.data.tokenizer);
  result["data"]["evaluation_bytes"] = config.data.evaluation_bytes;
  result["batch"] = {{"rows", config.batch.rows},
                     {"length", config.batch.length},
                     {"accumulation_steps", settings.accumulation_steps}};
  result["optimizer"] = {{"kind", optimizer_kind_name(settings.kind)}, {"lr", settings.lr}};
  if (settings.kind == OptimizerKind::sgd) {
    result["optimizer"]["momentum"] = settings.momentum;
    result["optimizer"]["dampening"] = settings.dampening;
    result["optimizer"]["nesterov"] = settings.nesterov;
  } else {
    result["optimizer"]["beta1"] = settings.beta1;
    result["optimizer"]["beta2"] = settings.beta2;
    result["optimizer"]["eps"] = settings.eps;
  }
  result["optimizer"]["weight_decay"] = settings.weight_decay;
  result["optimizer"]["max_norm"] = settings.max_norm ? json(*settings.max_norm) : json(nullptr);
  result["schedule"] = nullptr;
  if (config.schedule) {
    const Schedule& schedule = *config.schedule;
    const json kept = schedule.to_json();
    result["schedule"] = {{"kind", kept["kind"]},
                          {"peak_lr", kept["peak_lr"]},
                          {"min_lr", kept["min_lr"]},
                          {"warmup_steps", kept["warmup_steps"]},
                          {"total_steps", kept["total_steps"]}};
  }
  result["checkpoint"] = {{"every", config.checkpoint.every},
                          {"keep_last", config.checkpoint.keep_last},
                          {"keep_every", config.checkpoint.keep_every},
                          {"digest_every", config.checkpoint.digest_every}};
  result["evaluation"] = {{"every", config.evaluation.every},
                          {"windows", config.evaluation.windows},
                          {"patience", config.evaluation.patience},
                          {"min_delta", config.evaluation.min_delta},
                          {"keep_best", config.evaluation.keep_best}};
  result["sample"] = {{"every", config.sample.every},
                      {"prompt", config.sample.prompt},
                      {"prompts", config.sample.prompts},
                      {"tokens", config.sample.tokens},
                      {"temperature", config.sample.temperature}};
  return result;
}

void set_field(json& target, const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    refuse_value("--set " + assignment + ": must be key=value, for example optimizer.lr=0.001");
  }
  std::string key = assignment.substr(0, equals);
  if (key.front() != '/') {
    for (char& c : key) c = c == '.' ? '/' : c;
    key.insert(0, "/");
  }
  const std::string text = assignment.substr(equals + 1);
  json value = parse_bounded(text);
  if (value.is_discarded()) value = text;
  try {
    target[json::json_pointer(key)] = value;
  } catch (const json::exception&) {
    refuse_value("--set " + assignment + ": the config has no place for the key " + key);
  }
}

std::string first_difference(const json& mine, const json& theirs) {
  for (const char* pointer : {"/seed", "/model", "/train/freeze", "/data/sha256", "/data/bytes", "/data/order",
                              "/data/weights", "/data/start_positions_sha256", "/data/tokenizer_sha256",
                              "/data/evaluation_bytes", "/data/evaluation_rows", "/batch", "/optimizer", "/schedule"}) {
    const json::json_pointer place(pointer);
    const json a = mine.contains(place) ? mine.at(place) : json();
    const json b = theirs.contains(place) ? theirs.at(place) : json();
    if (a == b) continue;
    if (!a.is_object() || !b.is_object()) return pointer;
    for (const auto& [key, value] : a.items()) {
      if (!b.contains(key) || b.at(key) != value) return std::string(pointer) + "/" + key;
    }
    for (const auto& [key, value] : b.items()) {
      if (!a.contains(key)) return std::string(pointer) + "/" + key;
    }
  }
  return "";
}

}  // namespace samba
