// A run for TensorBoard: its losses, learning rates, evaluations and samples as event files (formats/event_file.h).
//
// Tags: loss/training, loss/smoothed, loss/held_out, learning_rate, gradient_norm, tokens_per_second, mfu,
// bits_per_byte, accuracy; texts samples/0, samples/1, ...
#pragma once

#include <optional>
#include <string>

#include "samba/formats/event_file.h"
#include "samba/train/run_folder.h"

namespace samba {

// What is computed of the steps so far.
struct StepFigures {
  double smoothed_loss = 0.0;
  std::optional<double> tokens_per_second, mfu;
};

class TensorBoardLog {
 public:
  // A new file in `folder`. It begins with the start of a session at `completed_steps` + 1, at which readers forget
  // what older files have of this and later steps: no step is there twice. (They take the first start they meet for
  // that of the run: every file has one.)
  TensorBoardLog(const Path& folder, Index completed_steps);

  const Path& path() const { return file_.path(); }
  void add(const StepMetrics& metrics, const StepFigures& figures, const std::string& unit);
  void add(const EvaluationMetrics& metrics);
  // The `number`th sample of a step.
  void add_sample(Index step, Index number, const std::string& text);

 private:
  void add(Index step, std::vector<SummaryValue> values);
  EventFile file_;
};

}  // namespace samba
