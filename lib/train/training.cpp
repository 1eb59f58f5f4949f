#include "samba/train/training.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "samba/core/error.h"
#include "samba/train/identity_card.h"
#include "samba/train/run_record.h"

namespace samba {

void Training::check_resumed_steps(Index completed, const Path& checkpoint) const {
  if (completed <= steps()) return;
  refuse_value("/steps: " + std::to_string(steps()) + " is less than the " + std::to_string(completed) + " steps " +
               checkpoint.string() + " has; steps is the total");
}

void Training::join(Communicator& ranks) {
  refuse_unsupported("this kind of model trains in one process, " + std::to_string(ranks.size()) +
                     " ranks were started");
}

std::string Training::card() {
  if (card_.empty()) card_ = first_card(parameters_sha256());
  return card_;
}

StepMetrics Training::take_step(bool with_parameters) {
  card_before_ = card();
  StepMetrics metrics = step();
  metrics.card = card_ = next_card(card_before_, metrics);
  if (with_parameters) metrics.parameters_sha256 = parameters_sha256();
  return metrics;
}

std::string Training::keep_batch(RunFolder& folder, StepBatch batch, Path& file) {
  try {
    batch.data = batch_of_step(batch.step);
    file = folder.add_batch(batch);
  } catch (const Error& error) {  // what is wrong with the training matters more
    return "; the batch of the step could not be kept: " + std::string(error.what());
  }
  if (file.empty()) return "";
  return "; what the step read is in " + file.string() + ", take it again with: samba verify --replay " + file.string();
}

void Training::warn_of_spike(RunFolder& folder, const TrainingEvents& events, const StepMetrics& metrics) {
  const auto spike = watch_.add(static_cast<double>(metrics.loss));
  if (!spike) return;
  char text[160];
  std::snprintf(text, sizeof text,
                "step %lld: the loss leapt to %.5g, above %.5g (the mean %.5g of the steps before, "
                "and %g deviations)",
                static_cast<long long>(metrics.step), spike->loss, spike->limit, spike->mean, plan_.watch.deviations);
  Path file;
  const nlohmann::ordered_json line = to_json(metrics);
  const std::string message =
      text + keep_batch(folder, {metrics.step, kLossSpike, text, line["loss_bits"], card_before_, {}}, file);
  folder.log().warn("{}", message);
  if (events.on_warning) events.on_warning(metrics.step, message, file);
}

StepMetrics Training::checked_step(RunFolder& folder) {
  const Index every = plan_.checkpoint.digest_every;
  try {
    return take_step(every > 0 && (completed_steps() + 1) % every == 0);
  } catch (const Error& error) {
    const bool non_finite = error.error_class() == kNonFiniteClass;
    std::string message = error.what();
    if (non_finite) {
      const Index step = completed_steps() + 1;
      message = "training stopped at step " + std::to_string(step) + ": " + message;
      Path file;
      if (leads()) message += keep_batch(folder, {step, kNonFinite, error.what(), "", card_before_, {}}, file);
    }
    folder.log().error("{}", message);
    if (!non_finite) throw;
    if (ranks_ != nullptr) throw AgreedError(ErrorKind::check, message);
    throw Error(ErrorKind::check, message);
  }
}

void Training::checkpoint(RunFolder& folder, const TrainingEvents& events, bool best, TrainingResult& result) {
  finish_checkpoint(folder, events, result);
  const Index done = completed_steps();
  Sidecar beside = sidecar();
  beside.card = card();
  beside.best = best;
  if (Saving saving = snapshot()) {
    const Path path = folder.checkpoint_path(done, beside.extension);
    pending_ = PendingCheckpoint{done, std::move(beside), std::async(std::launch::async, std::move(saving), path)};
    return;
  }
  add_checkpoint(folder, events, result, done, std::move(beside), [this](const Path& path) { return save(path); });
}

void Training::finish_checkpoint(RunFolder& folder, const TrainingEvents& events, TrainingResult& result) {
  if (!pending_) return;
  PendingCheckpoint saved = std::move(*pending_);
  pending_.reset();
  add_checkpoint(folder, events, result, saved.step, std::move(saved.beside),
                 [&](const Path&) { return saved.file.get(); });
}

void Training::add_checkpoint(RunFolder& folder, const TrainingEvents& events, TrainingResult& result, Index step,
                              Sidecar beside, const Saving& saving) {
  agreed(ranks_, [&] {
    result.checkpoint = folder.add_checkpoint(step, plan_.checkpoint, std::move(beside), saving);
    folder.draw_loss();
  });
  folder.log().info("checkpoint {}", result.checkpoint.string());
  if (events.on_checkpoint) events.on_checkpoint(step, result.checkpoint);
}

bool Training::report(RunFolder& folder, const TrainingEvents& events, const StepMetrics& metrics) {
  folder.add_metrics(to_json(metrics));
  if (leads()) warn_of_spike(folder, events, metrics);
  if (events.on_step) events.on_step(metrics);
  const auto due = [&](Index every) { return every > 0 && metrics.step % every == 0; };
  const bool due_evaluation = due(plan_.evaluation.every);
  bool best = false;
  if (evaluates_ && (metrics.step == steps() || due_evaluation)) {
    EvaluationMetrics evaluation = evaluate();
    evaluation.best = best = progress_.add(evaluation.step, evaluation.eval_loss, due_evaluation);
    folder.add_metrics(to_json(evaluation));
    if (events.on_evaluation) events.on_evaluation(evaluation);
  }
  if (!due(plan_.sample_every)) return best;
  for (const std::string& text : sample_texts()) {
    folder.add_sample(metrics.step, text);
    if (events.on_sample) events.on_sample(metrics.step, text);
  }
  return best;
}

bool Training::is_interrupted(const TrainingEvents& events) const {
  const bool mine = events.interrupted && events.interrupted();
  if (ranks_ == nullptr) return mine;
  const std::vector<char> all = gather_values(*ranks_, static_cast<char>(mine));
  return std::find(all.begin(), all.end(), 1) != all.end();
}

void Training::take_up(RunFolder& folder, TrainingResult& result) {
  result.step = completed_steps();
  if (result.step > 0 && card_.empty()) card_ = RunFolder::card_beside(folder.resume_archive());
  const Index every = plan_.evaluation.every;
  for (const auto& [step, loss] : folder.evaluations()) {
    if (every > 0 && step % every == 0 && step <= result.step) progress_.add(step, loss, true);
  }
  result.plateau = progress_.plateau();
  if (plan_.evaluation.keep_best) folder.set_best(progress_.best_step());
  if (!leads()) return;
  keep_beside(folder.folder());
  if (result.step == 0) return;
  const RunRecord record = read_metrics(folder.folder() / "metrics.jsonl");
  for (const RecordedStep& step : record.steps) {
    if (step.step <= result.step) watch_.add(step.loss);
  }
}

void Training::train_on(RunFolder& folder, const TrainingEvents& events, TrainingResult& result) {
  while (result.step < steps() && !result.interrupted && !result.plateau) {
    const StepMetrics metrics = checked_step(folder);
    result.step = metrics.step;
    result.loss = metrics.loss;
    bool best = false;
    agreed(ranks_, [&] { best = report(folder, events, metrics) && plan_.evaluation.keep_best; });
    result.plateau = progress_.plateau();
    const bool last = result.step == steps() || result.plateau;
    result.interrupted = is_interrupted(events) && !last;
    const bool due = plan_.checkpoint.every > 0 && result.step % plan_.checkpoint.every == 0;
    if (last || result.interrupted || due || best) {
      checkpoint(folder, events, best, result);
    } else if (pending_ && pending_->file.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
      finish_checkpoint(folder, events, result);
    }
  }
  finish_checkpoint(folder, events, result);
}

TrainingResult Training::run(RunFolder& folder, const TrainingEvents& events) {
  TrainingResult result;
  agreed(ranks_, [&] { take_up(folder, result); });
  folder.log().info("training from step {} to {}", result.step, steps());
  try {
    train_on(folder, events, result);
  } catch (...) {
    // What failed behind a checkpoint does not take it away.
    try {
      finish_checkpoint(folder, events, result);
    } catch (const std::exception& error) {
      folder.log().error("the checkpoint that was being written is lost: {}", error.what());
    }
    throw;
  }
  if (result.checkpoint.empty()) {  // nothing was left to do but what a run that failed behind its last checkpoint owes
    result.checkpoint = folder.resume_archive();
    folder.draw_loss();
  }
  folder.log().info("{} at step {}",
                    result.interrupted ? "interrupted"
                    : result.plateau   ? "stopped: the held-out loss gets no better,"
                                       : "finished",
                    result.step);
  return result;
}

}  // namespace samba
