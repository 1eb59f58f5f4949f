// What samba train tells while it goes on: to the terminal, as JSON lines with --json, to TensorBoard's files.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "commands.h"
#include "progress.h"
#include "samba/train/smoothed_loss.h"
#include "samba/train/tensorboard_log.h"
#include "samba/train/training.h"

namespace samba::apps {

// How fast the last steps were, of the time inside of steps alone.
class StepRate {
 public:
  void add(std::uint64_t units, double seconds);
  double per_second() const { return seconds_ > 0.0 ? units_ / seconds_ : 0.0; }

 private:
  std::deque<std::pair<double, double>> steps_;
  double units_ = 0.0, seconds_ = 0.0;
};

// The share of the processor's peak that the training uses: the operations that the model needs (bench/cost.h: matrix
// products, visible pairs of attention, the recurrence of the scans; the backward twice the forward) by the time of the
// steps, over the fused multiply-adds that the same threads do in registers.
class Utilization {
 public:
  Utilization(const Training& run, const Executor& executor, int ranks);

  // Measures the peak when it is asked for first: some ten milliseconds.
  std::optional<double> of(double units_per_second);

 private:
  double operations_ = 0.0;  // a unit; 0: not counted
  int threads_ = 1;
  int ranks_ = 1;
  std::string instruction_set_;
  std::optional<double> peak_;
};

class TrainView {
 public:
  // `tensorboard`: the folder of its files; empty: none.
  TrainView(const CommonOptions& common, const Training& run, const Executor& executor, int ranks,
            const Path& run_folder, const Path& tensorboard);

  TrainingEvents events();
  void finish() { progress_.finish(); }
  void say(const std::string& text) { progress_.say(text); }
  void emit(const nlohmann::ordered_json& line);

 private:
  void step(const StepMetrics& metrics);
  std::string note(const StepMetrics& metrics, const StepFigures& figures) const;

  const CommonOptions& common_;
  Progress progress_;
  std::string unit_;
  SmoothedLoss smoothed_;
  StepRate rate_;
  Utilization utilization_;
  std::optional<TensorBoardLog> tensorboard_;
  std::uint64_t units_ = 0;  // read so far
  double seconds_ = 0.0;     // in steps of this session
  Index sample_step_ = 0, samples_ = 0;
  bool closed_ = false;
};

std::string evaluation_text(const EvaluationMetrics& metrics);

}  // namespace samba::apps
