// Takes the step again whose batch a run kept because its loss leapt or was not finite (train/step_batch.h), and looks
// at that batch from the model as it was before the step.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "samba/core/files.h"
#include "samba/kernels/executor.h"
#include "samba/train/step_batch.h"

namespace samba::verify {

struct BatchReplay {
  StepBatch batch;
  Path run;
  std::string from;  // the checkpoint the steps before begin from, or "the initial values"
  Index steps = 0;   // taken to come to the step
  BatchFigures figures;
  std::string outcome;     // of the step: "the loss 5.1 (0x40a33333)", or why it was refused
  std::string difference;  // empty when the outcome is the one the file tells

  bool passed() const { return difference.empty(); }
};

// Reads the run that the file lies in and changes nothing. Error(value): no run, data that are not those of the run.
BatchReplay replay_batch(Executor& executor, const Path& file, const std::function<void(Index step)>& on_step = {});

nlohmann::ordered_json replay_batch_json(const BatchReplay& replay);

// Rows from the highest loss on; tensors of the gradient with elements that are not finite first, then from the largest
// norm on.
std::vector<std::size_t> rows_by_loss(const BatchFigures& figures);
std::vector<BatchFigures::Tensor> tensors_by_norm(const BatchFigures& figures);

}  // namespace samba::verify
