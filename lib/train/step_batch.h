// The batch of a step that went wrong, kept in the run's folder (docs/formats/run_folder.md):
// batches/step-00000123.json, with what was seen, everything the step read and the place of its random stream.
// `samba verify --replay FILE` takes the step again.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "samba/core/array.h"
#include "samba/core/files.h"

namespace samba {

inline constexpr const char* kBatchFormat = "samba.batch.v1";

// What the file is kept for.
inline constexpr const char* kLossSpike = "loss_spike";
inline constexpr const char* kNonFinite = "non_finite";

struct StepBatch {
  Index step = 0;
  std::string reason;           // kLossSpike, kNonFinite
  std::string message;          // what was seen, in words
  std::string loss_bits;        // of the step; empty when it was not finite
  std::string card;             // of the run before the step
  nlohmann::ordered_json data;  // Training::batch_of_step()
};

nlohmann::ordered_json to_json(const StepBatch& batch);
// Error(value) when there is no such file; Error(corrupt) when it is none of ours or damaged.
StepBatch read_step_batch(const Path& file);

// A batch seen from the model as it is before the step.
struct BatchFigures {
  struct Tensor {
    std::string name;
    double norm = 0.0;     // of its gradient, of the finite elements
    Index non_finite = 0;  // elements of the gradient
  };
  float loss = 0.0F;                   // of the step, dropout included
  std::vector<float> row_losses;       // of each row alone, without dropout; NaN where a row has no counted target
  std::vector<std::string> row_texts;  // what each row reads, as bytes of text; empty where it reads none
  std::vector<Tensor> gradient;
};

BatchFigures::Tensor gradient_figures(const std::string& name, std::span<const float> gradient);

}  // namespace samba
