// The training of a stack on tokens: windows, optimizer, schedule, evaluation on what is held out, sample text.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "samba/kernels/executor.h"
#include "samba/train/checkpoint.h"
#include "samba/train/checkpoint_image.h"
#include "samba/train/initial_model.h"
#include "samba/train/run_folder.h"
#include "samba/train/train_config.h"
#include "samba/train/trainer.h"
#include "samba/train/training.h"
#include "samba/train/training_data.h"
#include "samba/train/window_order.h"

namespace samba {

class TrainingRun final : public Training {
 public:
  // Opens the data and the tokenizer, checks them against the configuration. Error(value): no text, shorter than one
  // sequence, a token outside the vocabulary, start positions that do not fit.
  TrainingRun(const TrainConfig& config, const ModelOpener& opener);

  const TrainConfig& config() const { return config_; }
  // resolved_json with the digests of the data.
  nlohmann::ordered_json resolved() const override;

  void join(Communicator& ranks) override;
  void start(Executor& executor) override;
  void resume(Executor& executor, const Path& archive) override;
  Index completed_steps() const override { return trainer_->completed_steps(); }
  std::string summary() const override;
  std::string unit() const override { return "tokens"; }

  std::string parameters_sha256() const override { return trainer_->stack().parameters_sha256(); }

  SambaTrainer& trainer() { return *trainer_; }

  EvaluationMetrics evaluate() override;  // mean loss over what is held out; of all ranks
  std::vector<std::string> sample_texts() override;
  nlohmann::ordered_json batch_of_step(Index step) const override;
  BatchFigures figures_of_next_step() override;

 protected:
  StepMetrics step() override;
  Sidecar sidecar() const override;
  std::string save(const Path& path) const override;
  Saving snapshot() override;
  void keep_beside(const Path& folder) override;

 private:
  std::unique_ptr<WindowOrder> make_order();
  // The stack a new run begins with.
  std::unique_ptr<SambaStack> initial_stack(Executor& executor) const;
  void check_initial_model(const InitialModel& model) const;
  // What a new model or one of a checkpoint still needs before its first step.
  void make_ready(Executor& executor);
  RankPlace place() const;
  // What some held-out windows gave: the mean loss of the targets that count, their number, the bytes they stand for.
  struct HeldOutPart {
    double loss = 0.0;
    Index targets = 0;
    std::uint64_t bytes = 0;
  };
  HeldOutPart evaluate_windows(std::span<const std::uint64_t> starts);

  TrainConfig config_;
  ModelOpener opener_;
  std::unique_ptr<TrainingData> data_;
  nlohmann::ordered_json tokenizer_entry_;  // of the sidecar
  std::string start_positions_sha256_;
  std::unique_ptr<WindowOrder> order_;
  std::unique_ptr<SambaTrainer> trainer_;
  CheckpointImage image_;
};

}  // namespace samba
