#include "samba/verify/replay_batch.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "samba/convert/initial_model.h"
#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/train/model_kind.h"
#include "samba/train/train_config.h"
#include "samba/verify/replay.h"

namespace samba::verify {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The step itself: its loss, or why it is refused.
void take_step(Training& training, BatchReplay& replay) {
  std::string bits;
  try {
    const StepMetrics metrics = training.take_step(false);
    bits = to_json(metrics)["loss_bits"];
    char text[64];
    std::snprintf(text, sizeof text, "the loss %.6g (%s)", static_cast<double>(metrics.loss), bits.c_str());
    replay.outcome = text;
  } catch (const Error& error) {
    if (error.error_class() != kNonFiniteClass) throw;
    replay.outcome = error.what();
  }
  const bool same =
      replay.batch.reason == kLossSpike ? bits == replay.batch.loss_bits : replay.outcome == replay.batch.message;
  if (same) return;
  replay.difference =
      "the run had " +
      (replay.batch.reason == kLossSpike ? "a loss of " + replay.batch.loss_bits : "\"" + replay.batch.message + "\"") +
      ", here it is \"" + replay.outcome + "\"";
}

// NaN before all numbers.
double order_of(float loss) { return std::isnan(loss) ? HUGE_VAL : static_cast<double>(loss); }

nlohmann::ordered_json finite_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

}  // namespace

BatchReplay replay_batch(Executor& executor, const Path& file, const std::function<void(Index step)>& on_step) {
  BatchReplay replay;
  replay.batch = read_step_batch(file);
  replay.run = fs::weakly_canonical(file).parent_path().parent_path();
  const Path config_file = replay.run / "config.json";
  if (!fs::exists(config_file)) {
    refuse_value("--replay " + file.string() + ": the file must lie in the folder `batches` of its run; " +
                 replay.run.string() + " holds no config.json");
  }
  const json config = parse_json(read_file(config_file), config_file.string());
  const auto training = make_training(config_of_run(config, replay.run), replay.run, model_opener());
  const std::string field = samba::first_difference(training->resolved(), config);
  if (!field.empty()) refuse_value("--replay: " + field + " is not that of the run: its data changed since");
  if (replay.batch.step > training->steps()) {
    refuse_value("--replay " + file.string() + ": step " + std::to_string(replay.batch.step) + " is behind the " +
                 std::to_string(training->steps()) + " steps of the run");
  }
  const Path archive = checkpoint_before(replay.run, replay.batch.step);
  replay.from = archive.empty() ? "the initial values" : archive.string();
  if (archive.empty()) {
    training->start(executor);
  } else {
    training->resume(executor, archive);
    training->set_card(RunFolder::card_beside(archive));
  }
  while (training->completed_steps() + 1 < replay.batch.step) {
    training->take_step(false);
    ++replay.steps;
    if (on_step) on_step(training->completed_steps());
  }
  if (!replay.batch.card.empty() && training->card() != replay.batch.card) {
    replay.difference = "the steps before are not those of the run: its identity card was " + replay.batch.card +
                        ", here it is " + training->card();
    return replay;
  }
  if (json(training->batch_of_step(replay.batch.step)) != json(replay.batch.data)) {
    replay.difference = "the run's data give another batch than the one in the file";
    return replay;
  }
  replay.figures = training->figures_of_next_step();
  take_step(*training, replay);
  return replay;
}

std::vector<std::size_t> rows_by_loss(const BatchFigures& figures) {
  std::vector<std::size_t> rows(figures.row_losses.size());
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = i;
  std::stable_sort(rows.begin(), rows.end(), [&](std::size_t a, std::size_t b) {
    return order_of(figures.row_losses[a]) > order_of(figures.row_losses[b]);
  });
  return rows;
}

std::vector<BatchFigures::Tensor> tensors_by_norm(const BatchFigures& figures) {
  std::vector<BatchFigures::Tensor> tensors = figures.gradient;
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    if ((a.non_finite > 0) != (b.non_finite > 0)) return a.non_finite > 0;
    return a.norm > b.norm;
  });
  return tensors;
}

nlohmann::ordered_json replay_batch_json(const BatchReplay& replay) {
  nlohmann::ordered_json document = {{"equal", replay.passed()},  {"run", replay.run.string()},
                                     {"step", replay.batch.step}, {"reason", replay.batch.reason},
                                     {"from", replay.from},       {"steps_before", replay.steps},
                                     {"outcome", replay.outcome}};
  document["loss"] = finite_or_null(static_cast<double>(replay.figures.loss));
  document["row_losses"] = nlohmann::ordered_json::array();
  for (const float loss : replay.figures.row_losses) {
    document["row_losses"].push_back(finite_or_null(static_cast<double>(loss)));
  }
  document["row_texts"] = replay.figures.row_texts;
  document["gradient"] = nlohmann::ordered_json::array();
  for (const BatchFigures::Tensor& tensor : tensors_by_norm(replay.figures)) {
    document["gradient"].push_back(
        {{"tensor", tensor.name}, {"norm", finite_or_null(tensor.norm)}, {"non_finite", tensor.non_finite}});
  }
  if (!replay.passed()) document["difference"] = replay.difference;
  return document;
}

}  // namespace samba::verify
