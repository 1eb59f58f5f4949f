// Training the small MLP on the rows of CSV files.
//
// The rows of a step follow from (seed, step), as the windows of a text do; the checkpoint's data_schedule says which
// rows were taken: {"format": "samba.mlp_rows.v1", "order", "seed", "batch_rows", "rows", "evaluation_rows", "sha256",
// "rows_drawn"}.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "samba/train/mlp_data.h"
#include "samba/train/mlp_trainer.h"
#include "samba/train/train_config.h"
#include "samba/train/training.h"
#include "samba/train/window_order.h"

namespace samba {

struct MlpTrainConfig {
  std::vector<std::string> paths;    // CSV files, absolute
  std::string order = "permute.v1";  // permute.v1: each row once an epoch; draw.v1: with replacement
  Index evaluation_rows = 0;         // the last rows, which training never sees
  Index batch_rows = 32;             // 1 to 256
  OptimizerSettings optimizer;       // adamw with a constant rate
  CheckpointConfig checkpoint;
  EvaluationConfig evaluation;
  Index steps = 0;   // either this
  Index epochs = 0;  // or this many passes over the training rows
  std::uint64_t seed = 0;
};

// Checks and completes a configuration whose /model is {"kind": "mlp"}; refusals as those of parse_train_config.
MlpTrainConfig parse_mlp_train_config(const nlohmann::json& json, const Path& folder);
nlohmann::ordered_json resolved_json(const MlpTrainConfig& config);

class MlpRun final : public Training {
 public:
  // Reads the rows. Error(value): bad rows (each is named), none left to train on.
  explicit MlpRun(const MlpTrainConfig& config);

  nlohmann::ordered_json resolved() const override;
  void start(Executor& executor) override;
  void resume(Executor& executor, const Path& checkpoint) override;
  Index completed_steps() const override { return trainer_->completed_steps(); }
  std::string summary() const override;
  std::string unit() const override { return "rows"; }

  std::string parameters_sha256() const override;

  MlpTrainer& trainer() { return *trainer_; }

 protected:
  StepMetrics step() override;
  EvaluationMetrics evaluate() override;
  nlohmann::ordered_json batch_of_step(Index step) const override;
  BatchFigures figures_of_next_step() override;
  Sidecar sidecar() const override;
  std::string save(const Path& path) const override;

 private:
  MlpRun(const MlpTrainConfig& config, MlpRows rows);
  nlohmann::json schedule_at(Index step) const;
  std::vector<std::uint64_t> rows_of_step(Index step) const;

  MlpTrainConfig config_;
  MlpRows rows_;
  std::uint64_t training_rows_ = 0;
  std::unique_ptr<WindowOrder> order_;
  std::unique_ptr<MlpTrainer> trainer_;
};

}  // namespace samba
