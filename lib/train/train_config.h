// The configuration of a training run: JSON text that is checked once, every field by name.
//
// Refusals are Error(value) with a JSON pointer ("/model/layers/2: must be one of mamba3, attention, got ..."); unknown
// keys are refused with the nearest known name. configs/schema.json describes the same fields for editors.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "samba/core/files.h"
#include "samba/model/stack_config.h"
#include "samba/train/loss_watch.h"
#include "samba/train/optimizer.h"
#include "samba/train/schedule.h"

namespace samba {

struct DataConfig {
  std::vector<std::string> paths;  // text files and folders, or folders of token shards; absolute
  std::vector<double> weights;     // of the paths, in a mixture of token shards; empty: by their size
  std::string order = "draw.v1";   // draw.v1, permute.v1, start_positions
  std::string start_positions;     // a file: one line a step, one start a row; then order is "start_positions"
  std::string tokenizer;           // a file or folder, absolute; empty: tokens are bytes
  Index evaluation_bytes = 0;      // the tail of the text that training never sees
};

struct BatchConfig {
  Index rows = 8;
  Index length = 128;
};

struct CheckpointConfig {
  Index every = 100;        // steps; 0: only at the end
  Index keep_last = 3;      // older checkpoints are removed; 0: all stay
  Index keep_every = 0;     // those of a multiple of this step stay for good; 0: none
  Index digest_every = 10;  // steps; the digest of the parameters goes into metrics.jsonl; 0: never
};

struct EvaluationConfig {
  Index every = 0;         // steps; 0: only at the end
  Index windows = 0;       // at most, spread over what is held out; 0: all
  Index patience = 0;      // evaluations without a better loss before the run stops; 0: it goes on
  double min_delta = 0.0;  // by how much a loss must be lower to be better
  bool keep_best = false;  // a checkpoint at every best evaluation; the best one stays
};

struct SampleConfig {
  Index every = 0;  // steps; 0: never
  std::string prompt = "The ";
  std::vector<std::string> prompts;  // several, instead of `prompt`
  Index tokens = 64;
  double temperature = 0.8;
};

// What the training does with the model beside the optimizer's steps.
struct TrainSection {
  std::string init_from;                         // a model to begin from, absolute; empty: initial values are drawn
  std::vector<std::string> freeze;               // patterns of tensors that stay as they are (freeze.h)
  std::optional<Index> activation_budget_bytes;  // of the tape of a microbatch (samba_stack.h)
  WatchConfig watch;                             // when a leap of the loss is told
};

struct TrainConfig {
  StackConfig model;
  TrainSection train;
  DataConfig data;
  OptimizerSettings optimizer;
  std::optional<Schedule> schedule;
  BatchConfig batch;
  CheckpointConfig checkpoint;
  EvaluationConfig evaluation;
  SampleConfig sample;
  Index steps = 0;
  std::uint64_t seed = 0;
};

// Checks and completes. Relative paths of the config are taken from `folder`.
TrainConfig parse_train_config(const nlohmann::json& json, const Path& folder);

// The section /checkpoint.
CheckpointConfig read_checkpoint_config(const nlohmann::json& section);

// Every field, defaults filled in, paths absolute: parsing it again gives the same configuration.
nlohmann::ordered_json resolved_json(const TrainConfig& config);

// `assignment` is "optimizer.lr=0.001" or "/optimizer/lr=0.001"; the value is JSON, or else a text. The last of several
// assignments of a key counts.
void set_field(nlohmann::json& json, const std::string& assignment);

// The JSON pointer of the first field, among those that decide the bits of a run, in which two resolved configs differ;
// "" when none does. Steps, checkpoints, evaluation, samples and the paths of the text (its digest is compared) may
// differ.
std::string first_difference(const nlohmann::json& mine, const nlohmann::json& theirs);

}  // namespace samba
