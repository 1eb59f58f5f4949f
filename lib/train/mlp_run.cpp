#include "samba/train/mlp_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/core/sha256.h"
#include "samba/model/mlp_inference.h"
#include "samba/train/mlp_checkpoint.h"

namespace samba {

namespace {

using nlohmann::json;

constexpr const char* kProfile = "neural-training.fp32.v1";

std::uint64_t training_rows_of(const MlpTrainConfig& config, const MlpRows& rows) {
  if (config.evaluation_rows >= rows.rows()) {
    refuse_value("/data/evaluation_rows: " + std::to_string(config.evaluation_rows) + " of the " +
                 std::to_string(rows.rows()) + " rows are held back; none is left to train on");
  }
  return static_cast<std::uint64_t>(rows.rows() - config.evaluation_rows);
}

MlpTrainConfig with_steps(MlpTrainConfig config, const MlpRows& rows) {
  const auto training = static_cast<Index>(training_rows_of(config, rows));
  if (config.steps > 0) return config;
  if (config.epochs > kMlpMostSteps / training) {
    refuse_value("/epochs: " + std::to_string(config.epochs) + " are more than 2^31 - 1 steps");
  }
  config.steps = (config.epochs * training + config.batch_rows - 1) / config.batch_rows;
  config.epochs = 0;
  return config;
}

TrainingPlan plan_of(const MlpTrainConfig& config) { return {config.steps, config.checkpoint, config.evaluation, 0}; }

OptimizerSettings read_optimizer(const json& value) {
  const JsonFields fields(value, "/optimizer", {"kind", "lr", "beta1", "beta2", "eps", "weight_decay"});
  OptimizerSettings settings;
  fields.choice("kind", "adamw", {"adamw"});
  settings.lr = fields.number("lr", settings.lr);
  settings.beta1 = fields.number("beta1", settings.beta1);
  settings.beta2 = fields.number("beta2", settings.beta2);
  settings.eps = fields.number("eps", settings.eps);
  settings.weight_decay = fields.number("weight_decay", settings.weight_decay);
  try {
    rounded_mlp_settings(settings);
  } catch (const Error& error) {
    refuse_value(std::string("/optimizer: ") + error.what());
  }
  return settings;
}

void read_data(const json& value, const Path& folder, MlpTrainConfig& config) {
  const JsonFields fields(value, "/data", {"paths", "order", "evaluation_rows"});
  const json& paths = fields.required("paths");
  if (!paths.is_array() || paths.empty()) fields.refuse("paths", "a list of at least one CSV file");
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (!paths[i].is_string() || paths[i].get<std::string>().empty()) {
      refuse_value("/data/paths/" + std::to_string(i) + ": must be a path, got " + shown(paths[i]));
    }
    config.paths.push_back(std::filesystem::absolute(folder / paths[i].get<std::string>()).lexically_normal().string());
  }
  config.order = fields.choice("order", config.order, {"permute.v1", "draw.v1"});
  config.evaluation_rows = fields.integer("evaluation_rows", 0, 0);
}

}  // namespace

MlpTrainConfig parse_mlp_train_config(const json& value, const Path& folder) {
  const JsonFields fields(
      value, "", {"model", "data", "optimizer", "batch", "checkpoint", "evaluation", "steps", "epochs", "seed"});
  const json empty = json::object();
  const auto section = [&](const char* name) -> const json& { return fields.has(name) ? fields.get(name) : empty; };
  const JsonFields model(fields.required("model"), "/model", {"kind"});
  model.choice("kind", "", {"mlp"});
  MlpTrainConfig config;
  read_data(fields.required("data"), folder, config);
  config.batch_rows =
      JsonFields(section("batch"), "/batch", {"rows"}).integer("rows", config.batch_rows, 1, kMlpMostRows);
  config.optimizer = read_optimizer(section("optimizer"));
  config.checkpoint = read_checkpoint_config(section("checkpoint"));
  config.evaluation.every =
      JsonFields(section("evaluation"), "/evaluation", {"every"}).integer("every", config.evaluation.every, 0);
  if (config.evaluation.every > 0 && config.evaluation_rows == 0) {
    refuse_value("/evaluation/every: " + std::to_string(config.evaluation.every) +
                 " contradicts /data/evaluation_rows 0: nothing is held back to evaluate on");
  }
  if (fields.has("steps") == fields.has("epochs")) refuse_value("the config must have either /steps or /epochs");
  if (fields.has("steps")) config.steps = fields.integer("steps", std::nullopt, 1, kMlpMostSteps);
  if (fields.has("epochs")) config.epochs = fields.integer("epochs", std::nullopt, 1, kMlpMostSteps);
  config.seed = fields.unsigned_integer("seed", 0);
  return config;
}

nlohmann::ordered_json resolved_json(const MlpTrainConfig& config) {
  auto result = nlohmann::ordered_json::object();
  result["seed"] = config.seed;
  result[config.steps > 0 ? "steps" : "epochs"] = config.steps > 0 ? config.steps : config.epochs;
  result["model"] = {{"kind", "mlp"}};
  result["data"] = {{"paths", config.paths}, {"order", config.order}, {"evaluation_rows", config.evaluation_rows}};
  result["batch"] = {{"rows", config.batch_rows}};
  const OptimizerSettings& settings = config.optimizer;
  result["optimizer"] = {{"kind", "adamw"},         {"lr", settings.lr},   {"beta1", settings.beta1},
                         {"beta2", settings.beta2}, {"eps", settings.eps}, {"weight_decay", settings.weight_decay}};
  result["checkpoint"] = {{"every", config.checkpoint.every},
                          {"keep_last", config.checkpoint.keep_last},
                          {"keep_every", config.checkpoint.keep_every},
                          {"digest_every", config.checkpoint.digest_every}};
  result["evaluation"] = {{"every", config.evaluation.every}};
  return result;
}

MlpRun::MlpRun(const MlpTrainConfig& config) : MlpRun(config, read_mlp_rows(config.paths, ClassColumn::required)) {}

MlpRun::MlpRun(const MlpTrainConfig& config, MlpRows rows)
    : Training(plan_of(with_steps(config, rows))),
      config_(with_steps(config, rows)),
      rows_(std::move(rows)),
      training_rows_(training_rows_of(config_, rows_)),
      order_(config_.order == "draw.v1" ? draw_order(config_.seed, training_rows_)
                                        : permute_order(config_.seed, training_rows_, 1)) {
  set_evaluates(config_.evaluation_rows > 0);
}

nlohmann::ordered_json MlpRun::resolved() const {
  nlohmann::ordered_json result = resolved_json(config_);
  result["data"]["rows"] = training_rows_;
  result["data"]["sha256"] = rows_.sha256;
  return result;
}

std::string MlpRun::summary() const {
  return std::to_string(kMlpParameters) + " parameters on " + std::to_string(training_rows_) + " rows of " +
         std::to_string(rows_.files) + " file(s)";
}

json MlpRun::schedule_at(Index step) const {
  return {{"format", "samba.mlp_rows.v1"}, {"order", config_.order},
          {"seed", config_.seed},          {"batch_rows", config_.batch_rows},
          {"rows", training_rows_},        {"evaluation_rows", config_.evaluation_rows},
          {"sha256", rows_.sha256},        {"rows_drawn", step * config_.batch_rows}};
}

void MlpRun::start(Executor& executor) {
  trainer_ = std::make_unique<MlpTrainer>(executor, mlp_arrays(draw_mlp_values(config_.seed)), schedule_at(0),
                                          config_.optimizer);
}

std::string MlpRun::parameters_sha256() const {
  const MlpState state = trainer_->state();
  return sha256_hex(state.weights.data(), state.weights.size() * sizeof(float));
}

void MlpRun::resume(Executor& executor, const Path& checkpoint) {
  auto trainer = load_mlp_for_training(executor, checkpoint);
  const auto differs = [&](const std::string& field) {
    refuse_value("cannot resume from " + checkpoint.string() + ": " + field +
                 " differs from the configuration of the run");
  };
  if (trainer->settings() != rounded_mlp_settings(config_.optimizer)) differs("/optimizer");
  const json wanted = schedule_at(trainer->completed_steps());
  for (const auto& [name, value] : wanted.items()) {
    if (trainer->data_schedule().value(name, json()) != value) differs("data_schedule/" + name);
  }
  check_resumed_steps(trainer->completed_steps(), checkpoint);
  trainer_ = std::move(trainer);
}

StepMetrics MlpRun::step() {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::uint64_t> rows = rows_of_step(trainer_->completed_steps() + 1);
  const MlpStep step = trainer_->train_step(rows_.features_of(rows), rows_.classes_of(rows));
  StepMetrics metrics;
  metrics.step = step.step;
  metrics.loss = step.before.loss;
  metrics.lr = static_cast<float>(trainer_->settings().lr);
  metrics.tokens = static_cast<std::uint64_t>(step.step * config_.batch_rows);
  metrics.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return metrics;
}

std::vector<std::uint64_t> MlpRun::rows_of_step(Index step) const {
  std::vector<std::uint64_t> rows(static_cast<std::size_t>(config_.batch_rows));
  order_->starts(static_cast<std::uint64_t>(step - 1), rows);
  return rows;
}

nlohmann::ordered_json MlpRun::batch_of_step(Index step) const {
  const std::vector<std::uint64_t> rows = rows_of_step(step);
  nlohmann::ordered_json batch = {{"kind", "rows"}, {"order", config_.order}, {"seed", config_.seed}, {"rows", rows}};
  for (const std::uint64_t row : rows) {
    const auto first = rows_.features.begin() + static_cast<std::ptrdiff_t>(row) * kMlpFeatures;
    batch["features"].push_back(std::vector<float>(first, first + kMlpFeatures));
    batch["classes"].push_back(rows_.classes[row]);
  }
  return batch;
}

BatchFigures MlpRun::figures_of_next_step() {
  const std::vector<std::uint64_t> rows = rows_of_step(completed_steps() + 1);
  const auto gradients_of = [&](std::span<const std::uint64_t> some) -> std::optional<MlpGradients> {
    try {
      return trainer_->loss_and_grads(rows_.features_of(some), rows_.classes_of(some));
    } catch (const Error& error) {
      if (error.error_class() != kNonFiniteClass) throw;
      return std::nullopt;
    }
  };
  BatchFigures figures;
  const auto whole = gradients_of(rows);
  figures.loss = whole ? whole->loss : std::nanf("");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto one = gradients_of(std::span(rows).subspan(i, 1));
    figures.row_losses.push_back(one ? one->loss : std::nanf(""));
  }
  if (!whole) return figures;
  for (const auto& [name, gradient] : whole->gradients) {
    figures.gradient.push_back(gradient_figures(name, gradient.values<float>()));
  }
  return figures;
}

EvaluationMetrics MlpRun::evaluate() {
  double total = 0.0;
  std::size_t right = 0;
  const auto end = static_cast<std::uint64_t>(rows_.rows());
  for (std::uint64_t first = training_rows_; first < end; first += static_cast<std::uint64_t>(kMlpMostRows)) {
    std::vector<std::uint64_t> rows;
    for (std::uint64_t row = first; row < std::min(end, first + static_cast<std::uint64_t>(kMlpMostRows)); ++row) {
      rows.push_back(row);
    }
    const MlpGradients result = trainer_->loss_and_grads(rows_.features_of(rows), rows_.classes_of(rows));
    total += static_cast<double>(result.loss) * static_cast<double>(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      right += predicted_class(result.logits, i) == rows_.classes[rows[i]] ? 1 : 0;
    }
  }
  const auto count = static_cast<double>(config_.evaluation_rows);
  EvaluationMetrics metrics;
  metrics.step = trainer_->completed_steps();
  metrics.eval_loss = total / count;
  metrics.accuracy = static_cast<double>(right) / count;
  return metrics;
}

Sidecar MlpRun::sidecar() const {
  Sidecar sidecar;
  sidecar.extension = ".mlp";
  sidecar.tokenizer = nullptr;
  sidecar.profile = kProfile;
  sidecar.data_order = config_.order;
  sidecar.data_seed = config_.seed;
  sidecar.rows_drawn = static_cast<std::uint64_t>(trainer_->completed_steps() * config_.batch_rows);
  return sidecar;
}

std::string MlpRun::save(const Path& path) const {
  MlpState state = trainer_->state();
  state.data_schedule = schedule_at(state.step);
  return save_mlp_checkpoint(state, path);
}

}  // namespace samba
