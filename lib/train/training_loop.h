// The training of a stack on text: windows of bytes, AdamW, schedule, evaluation on the held-back tail, sample text.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "samba/kernels/executor.h"
#include "samba/text/model_text.h"
#include "samba/train/checkpoint.h"
#include "samba/train/data.h"
#include "samba/train/encoded_text.h"
#include "samba/train/run_folder.h"
#include "samba/train/train_config.h"
#include "samba/train/trainer.h"
#include "samba/train/training.h"

namespace samba {

class TrainingRun final : public Training {
 public:
  // Opens the text and the tokenizer, checks them against the configuration. Error(value): no text, shorter than one
  // sequence, a token outside the vocabulary, start positions that do not fit.
  explicit TrainingRun(const TrainConfig& config);

  const TrainConfig& config() const { return config_; }
  std::uint64_t training_bytes() const { return training_bytes_; }
  std::size_t files() const { return text_.files(); }
  // resolved_json with the digests of the text.
  nlohmann::ordered_json resolved() const override;

  void join(Communicator& ranks) override;
  void start(Executor& executor) override;
  void resume(Executor& executor, const Path& archive) override;
  Index completed_steps() const override { return trainer_->completed_steps(); }
  std::string summary() const override;
  std::string unit() const override { return "tokens"; }

  std::string parameters_sha256() const override { return trainer_->stack().parameters_sha256(); }

  SambaTrainer& trainer() { return *trainer_; }

  EvaluationMetrics evaluate() override;  // mean loss over the held-back tail

 protected:
  StepMetrics step() override;
  std::string sample_text() override;
  Sidecar sidecar() const override;
  std::string save(const Path& path) const override;
  void keep_beside(const Path& folder) override;

 private:
  void reserve_workspace(Executor& executor);
  std::uint64_t training_tokens() const { return encoded_ ? encoded_->training_tokens() : training_bytes_; }
  std::uint64_t all_tokens() const { return encoded_ ? encoded_->size() : text_.size(); }
  WindowBatch batch_at(std::span<const std::uint64_t> starts) const;
  void read_tokenizer();
  RankPlace place() const;

  TrainConfig config_;
  TextData text_;
  std::uint64_t training_bytes_ = 0;
  ModelText tokenizer_;                   // without one tokens are bytes
  std::unique_ptr<EncodedText> encoded_;  // then this is null
  std::string tokenizer_sha256_;
  nlohmann::ordered_json tokenizer_entry_;  // of the sidecar
  std::string sha256_;
  std::string start_positions_sha256_;
  std::unique_ptr<WindowOrder> order_;
  std::unique_ptr<SambaTrainer> trainer_;
};

}  // namespace samba
