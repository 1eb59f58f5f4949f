#include "train_view.h"

#include <spdlog/spdlog.h>

#include <cstdio>

#include "output.h"
#include "samba/bench/cost.h"
#include "samba/bench/machine.h"
#include "samba/core/interrupt.h"
#include "samba/train/run_record.h"

namespace samba::apps {

namespace {

constexpr std::size_t kRateSteps = 20;
constexpr double kBeforePeak = 1.0;  // seconds in steps before the peak is measured: short runs go without

std::string number(double value, const char* pattern) {
  char text[48];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

Index steps_of(const Training& run) { return run.completed_steps(); }

}  // namespace

std::string evaluation_text(const EvaluationMetrics& metrics) {
  const std::string score = metrics.accuracy ? number(100.0 * *metrics.accuracy, "%.1f") + " % of the classes right"
                                             : number(metrics.bits_per_byte, "%.3f") + " bits per byte";
  return "step " + std::to_string(metrics.step) + ": held-back " + (metrics.accuracy ? "rows" : "text") + ": loss " +
         number(metrics.eval_loss, "%.4f") + ", " + score;
}

void StepRate::add(std::uint64_t units, double seconds) {
  steps_.emplace_back(static_cast<double>(units), seconds);
  if (steps_.size() > kRateSteps) steps_.pop_front();
  units_ = seconds_ = 0.0;
  for (const auto& [one_units, one_seconds] : steps_) {
    units_ += one_units;
    seconds_ += one_seconds;
  }
}

Utilization::Utilization(const Training& run, const Executor& executor, int ranks)
    : threads_(executor.threads()), ranks_(ranks), instruction_set_(executor.instruction_set()) {
  const nlohmann::json config = run.resolved();
  if (executor.name() != "cpu" || !config.contains("batch") || !config["batch"].contains("length")) return;
  const auto rows = config["batch"]["rows"].get<Index>(), length = config["batch"]["length"].get<Index>();
  const StackConfig model = stack_config_from_json(config["model"], "/model");
  operations_ = bench::training_cost(model, rows, length).flops / static_cast<double>(rows * length);
}

std::optional<double> Utilization::of(double units_per_second) {
  if (operations_ <= 0.0 || units_per_second <= 0.0) return std::nullopt;
  if (!peak_) peak_ = bench::short_peak_flops(threads_, instruction_set_) * ranks_;
  return operations_ * units_per_second / *peak_;
}

TrainView::TrainView(const CommonOptions& common, const Training& run, const Executor& executor, int ranks,
                     const Path& run_folder, const Path& tensorboard)
    : common_(common),
      progress_(common.progress, "train", "steps", static_cast<std::uint64_t>(steps_of(run)),
                static_cast<std::uint64_t>(run.steps())),
      unit_(run.unit()),
      utilization_(run, executor, ranks) {
  progress_.set_note_below();
  if (!tensorboard.empty()) tensorboard_.emplace(tensorboard, steps_of(run));
  if (steps_of(run) == 0) return;
  const RunRecord record = read_metrics(run_folder / "metrics.jsonl");
  for (const RecordedStep& step : record.steps) smoothed_.add(step.loss);
  units_ = record.tokens_at(steps_of(run));
}

std::string TrainView::note(const StepMetrics& metrics, const StepFigures& figures) const {
  std::string note = "loss " + number(static_cast<double>(metrics.loss), "%.4f") + "  smoothed " +
                     number(figures.smoothed_loss, "%.4f") + "  lr " + number(static_cast<double>(metrics.lr), "%.3g");
  if (metrics.total_norm) note += "  norm " + number(static_cast<double>(*metrics.total_norm), "%.3g");
  if (figures.tokens_per_second) note += "  " + number(*figures.tokens_per_second, "%.0f") + " " + unit_ + "/s";
  if (figures.mfu) note += "  MFU " + number(100.0 * *figures.mfu, "%.0f") + " %";
  return note;
}

void TrainView::step(const StepMetrics& metrics) {
  emit(to_json(metrics));
  StepFigures figures;
  figures.smoothed_loss = smoothed_.add(static_cast<double>(metrics.loss));
  rate_.add(metrics.tokens - std::min(units_, metrics.tokens), metrics.seconds);
  units_ = metrics.tokens;
  seconds_ += metrics.seconds;
  if (rate_.per_second() > 0.0) figures.tokens_per_second = rate_.per_second();
  const bool looked_at = common_.progress != "never" || tensorboard_.has_value();
  if (looked_at && seconds_ > kBeforePeak) figures.mfu = utilization_.of(rate_.per_second());
  if (tensorboard_) tensorboard_->add(metrics, figures, unit_);
  progress_.update(static_cast<std::uint64_t>(metrics.step), note(metrics, figures));
}

TrainingEvents TrainView::events() {
  TrainingEvents events;
  events.on_step = [this](const StepMetrics& metrics) { step(metrics); };
  events.on_evaluation = [this](const EvaluationMetrics& metrics) {
    emit(to_json(metrics));
    if (tensorboard_) tensorboard_->add(metrics);
    progress_.say(evaluation_text(metrics));
  };
  events.on_sample = [this](Index step, const std::string& text) {
    emit({{"step", step}, {"sample", text}});
    samples_ = step == sample_step_ ? samples_ + 1 : 0;
    sample_step_ = step;
    if (tensorboard_) tensorboard_->add_sample(step, samples_, text);
    progress_.say("step " + std::to_string(step) +
                  ": sample: " + nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  };
  events.on_checkpoint = [this](Index step, const Path& archive) {
    emit({{"step", step}, {"checkpoint", archive.string()}});
    progress_.say("step " + std::to_string(step) + ": checkpoint " + archive.string());
  };
  events.on_warning = [this](Index step, const std::string& text, const Path& batch) {
    emit({{"step", step}, {"warning", text}, {"batch", batch.string()}});
    progress_.clear();
    spdlog::warn("{}", text);
  };
  events.interrupted = interrupt_requested;
  return events;
}

void TrainView::emit(const nlohmann::ordered_json& line) {
  if (!common_.json || closed_) return;
  try {
    print(json_line(line));
  } catch (const OutputClosed&) {
    closed_ = true;
  }
}

}  // namespace samba::apps
