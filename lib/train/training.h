// A training run from its configuration to its last checkpoint, whatever the kind of its model.
//
// Every step's data follow from (seed, step), every other number from the checkpoint: a run that was stopped and
// resumed has the bits of one that was not. The kinds are TrainingRun (training_loop.h, stacks on text) and MlpRun
// (mlp_run.h, the small MLP on rows); make_training() (model_kind.h) chooses.
#pragma once

#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "samba/kernels/executor.h"
#include "samba/train/communicator.h"
#include "samba/train/evaluation_progress.h"
#include "samba/train/loss_watch.h"
#include "samba/train/run_folder.h"
#include "samba/train/step_batch.h"

namespace samba {

// What a run tells while it goes on; every function may be empty.
struct TrainingEvents {
  std::function<void(const StepMetrics&)> on_step;
  std::function<void(const EvaluationMetrics&)> on_evaluation;
  std::function<void(Index step, const std::string& text)> on_sample;
  std::function<void(Index step, const Path& checkpoint)> on_checkpoint;
  // The loss leapt; `batch`: the file that holds what the step read, empty when none was written.
  std::function<void(Index step, const std::string& text, const Path& batch)> on_warning;
  std::function<bool()> interrupted;  // asked after every step
};

struct TrainingResult {
  Index step = 0;  // completed
  float loss = 0.0F;
  Path checkpoint;
  bool interrupted = false;
  bool plateau = false;  // the held-out loss did not get better any more (evaluation.patience)
};

// When a run does what beside its steps.
struct TrainingPlan {
  Index steps = 0;  // in all
  CheckpointConfig checkpoint;
  EvaluationConfig evaluation;
  Index sample_every = 0;  // steps; 0: never
  WatchConfig watch = {};
};

class Training {
 public:
  virtual ~Training() = default;

  // Before start() or resume(): this process is one of several ranks that train the model together. All make the same
  // calls; rank 0 has the run's folder, the others follow it (RunFolder::follow). Error(unsupported) for a kind of
  // model that trains alone.
  virtual void join(Communicator& ranks);

  // The configuration with the digests of the data.
  virtual nlohmann::ordered_json resolved() const = 0;
  // A new model, initial values from the seed; or the one of a checkpoint. Error(value) when the checkpoint was made
  // with another configuration (the message names the field), or has more steps than /steps.
  virtual void start(Executor& executor) = 0;
  virtual void resume(Executor& executor, const Path& checkpoint) = 0;

  virtual Index completed_steps() const = 0;
  virtual std::string summary() const = 0;  // "195 parameters on 150 rows of 1 file(s)"
  virtual std::string unit() const = 0;     // what StepMetrics::tokens counts: "tokens", "rows"
  Index steps() const { return plan_.steps; }

  // The SHA-256 of the parameters, in registry order, as they are.
  virtual std::string parameters_sha256() const = 0;
  // The identity card of the run so far (identity_card.h). Where a run begins it follows from the initial values; where
  // it goes on, set_card() says it; without that it begins anew at that step.
  std::string card();
  void set_card(std::string card) { card_ = std::move(card); }
  // Takes one step, for whoever wants no folder. `with_parameters`: with the digest of the parameters after it.
  StepMetrics take_step(bool with_parameters);
  // Writes a checkpoint; returns the file's SHA-256.
  std::string save_to(const Path& path) const { return save(path); }

  bool evaluates() const { return evaluates_; }
  // Of the model as it is.
  virtual EvaluationMetrics evaluate() = 0;
  virtual std::vector<std::string> sample_texts() { return {}; }

  // Everything that a step reads, whether it was taken or not: {"kind": "tokens", "starts", "inputs", "targets", ...}.
  virtual nlohmann::ordered_json batch_of_step(Index step) const = 0;
  // What batch_of_step() of the next step gives looks like from the model as it is; no step is taken.
  virtual BatchFigures figures_of_next_step() = 0;

  // Trains up to steps(), or to a plateau, and leaves metrics, samples, checkpoints in `folder`; the last step always
  // has a checkpoint. A value that is not finite is Error(check): it names the step; the last good checkpoint stays.
  TrainingResult run(RunFolder& folder, const TrainingEvents& events);

 protected:
  explicit Training(const TrainingPlan& plan)
      : plan_(plan), progress_(plan.evaluation.patience, plan.evaluation.min_delta), watch_(plan.watch) {}
  void set_evaluates(bool evaluates) { evaluates_ = evaluates; }  // whether anything is held out

  virtual StepMetrics step() = 0;
  virtual Sidecar sidecar() const = 0;
  virtual std::string save(const Path& path) const = 0;  // returns the file's SHA-256
  // What writes a checkpoint of this moment on another thread while the run goes on; empty where save() is to be
  // called. Until it has ended it is not asked for again.
  using Saving = std::function<std::string(const Path& path)>;
  virtual Saving snapshot() { return {}; }
  // What the run's folder holds beside checkpoints; asked for before the first step.
  virtual void keep_beside(const Path& /*folder*/) {}

  // Null: alone.
  Communicator* ranks() const { return ranks_; }
  void set_ranks(Communicator& ranks) { ranks_ = &ranks; }

  // Error(value) when a checkpoint has more steps than the run.
  void check_resumed_steps(Index completed, const Path& checkpoint) const;

 private:
  // What a run knows before its first step.
  void take_up(RunFolder& folder, TrainingResult& result);
  StepMetrics checked_step(RunFolder& folder);
  bool leads() const { return ranks_ == nullptr || ranks_->rank() == 0; }
  void warn_of_spike(RunFolder& folder, const TrainingEvents& events, const StepMetrics& metrics);
  // Writes the batch of a step and tells of it; returns what to say of the file.
  std::string keep_batch(RunFolder& folder, StepBatch batch, Path& file);
  // What follows a step: its metrics, and what is due. True when its evaluation was the best so far.
  bool report(RunFolder& folder, const TrainingEvents& events, const StepMetrics& metrics);
  bool is_interrupted(const TrainingEvents& events) const;
  void checkpoint(RunFolder& folder, const TrainingEvents& events, bool best, TrainingResult& result);
  // Waits for the checkpoint that is being written, if any, and makes it the run's latest.
  void finish_checkpoint(RunFolder& folder, const TrainingEvents& events, TrainingResult& result);
  void add_checkpoint(RunFolder& folder, const TrainingEvents& events, TrainingResult& result, Index step,
                      Sidecar beside, const Saving& saving);
  void train_on(RunFolder& folder, const TrainingEvents& events, TrainingResult& result);

  struct PendingCheckpoint {
    Index step = 0;
    Sidecar beside;
    std::future<std::string> file;  // its SHA-256
  };

  TrainingPlan plan_;
  EvaluationProgress progress_;
  LossWatch watch_;
  bool evaluates_ = false;
  Communicator* ranks_ = nullptr;
  std::string card_;         // empty: not known yet
  std::string card_before_;  // of the step that is taken
  std::optional<PendingCheckpoint> pending_;
};

}  // namespace samba
