// A training run from its configuration to its last checkpoint.
//
// Every step's windows follow from (seed, step), every other number from the archive: a run that was stopped and
// resumed has the bits of one that was not.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "samba/kernels/executor.h"
#include "samba/train/checkpoint.h"
#include "samba/train/data.h"
#include "samba/train/run_folder.h"
#include "samba/train/train_config.h"
#include "samba/train/trainer.h"

namespace samba {

// What a run tells while it goes on; every function may be empty.
struct TrainingEvents {
  std::function<void(const StepMetrics&)> on_step;
  std::function<void(const EvaluationMetrics&)> on_evaluation;
  std::function<void(Index step, const std::string& text)> on_sample;
  std::function<void(Index step, const Path& archive)> on_checkpoint;
  std::function<bool()> interrupted;  // asked after every step
};

struct TrainingResult {
  Index step = 0;  // completed
  float loss = 0.0F;
  Path checkpoint;
  bool interrupted = false;
};

class TrainingRun {
 public:
  // Opens the text, checks it against the configuration. Error(value): no text, shorter than one sequence, a token
  // outside the vocabulary, start positions that do not fit.
  explicit TrainingRun(const TrainConfig& config);

  const TrainConfig& config() const { return config_; }
  std::uint64_t training_bytes() const { return training_bytes_; }
  std::size_t files() const { return text_.files(); }
  // resolved_json with the digests of the text.
  nlohmann::ordered_json resolved() const;

  // A new model, initial values from the seed; or the one of an archive. Error(value) when the archive's configuration
  // is another one (the message names the field), or has more steps than /steps.
  void start(Executor& executor);
  void resume(Executor& executor, const Path& archive);

  SambaTrainer& trainer() { return *trainer_; }

  // Trains up to config().steps and leaves metrics, samples, checkpoints in `folder`; the last step always has a
  // checkpoint. A value that is not finite is Error(check): it names step and tensor; the last good checkpoint stays.
  TrainingResult run(RunFolder& folder, const TrainingEvents& events);

  // Mean loss over the held-back tail.
  EvaluationMetrics evaluate();

 private:
  StepMetrics step();
  void checkpoint(RunFolder& folder, const TrainingEvents& events, TrainingResult& result);
  std::string sample_text();

  TrainConfig config_;
  TextData text_;
  std::uint64_t training_bytes_ = 0;
  std::string sha256_;
  std::string start_positions_sha256_;
  std::unique_ptr<WindowOrder> order_;
  std::unique_ptr<SambaTrainer> trainer_;
};

}  // namespace samba
