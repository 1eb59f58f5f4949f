// What the commands do with a small MLP (ModelKind::mlp); train needs nothing of its own (lib/train/model_kind.h).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "commands.h"
#include "samba/core/files.h"
#include "samba/numerics/packed_weight.h"

namespace samba::apps {

// The result of `samba prefill`: a line of class and logits for each row of a CSV file; with a file for the logits one
// float32 tensor `logits` (rows, 3) and its name; with `score` loss and accuracy of rows that have a class.
struct MlpPrefill {
  std::string file;
  std::string logits;
  bool score = false;
};
std::string prefill_mlp(const Path& model, const MlpPrefill& options, const CommonOptions& common);

// The same keys as of a stack, and data_schedule as its canonical text.
nlohmann::ordered_json inspect_mlp(const Path& model, bool memory);

struct MlpConversion {
  bool to_file = false;  // the checkpoint file; else a folder of safetensors
  WeightFormat format = WeightFormat::float32;
  bool dry_run = false;
};
std::string convert_mlp(const Path& in, const Path& out, const MlpConversion& options, const CommonOptions& common);

// Error(unsupported) with the reason when `model` is an MLP.
void refuse_mlp(const Path& model, const std::string& command, const std::string& instead);

}  // namespace samba::apps
