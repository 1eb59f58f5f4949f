// The folder of a training run (docs/formats/run_folder.md):
//
//   config.json                        the resolved configuration, with the SHA-256 of the training bytes
//   metrics.jsonl                      one object a step, and one an evaluation
//   checkpoints/step-00000020.samba    the streamed archive, or .mlp; step-00000020.json beside it
//   latest                             the name of the newest complete checkpoint, replaced atomically
//   best                               that of the best one, with evaluation.keep_best
//   run.log, loss.svg, samples.txt
//   batches/step-00000020.json         what a step read whose loss leapt or was not finite (step_batch.h)
//
// A run folder is locked while it is open (core/folder_lock.h): a second process is refused.
#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "samba/core/files.h"
#include "samba/core/folder_lock.h"
#include "samba/train/step_batch.h"
#include "samba/train/train_config.h"

namespace spdlog {
class logger;
}

namespace samba {

struct StepMetrics {
  Index step = 0;
  float loss = 0.0F;
  float lr = 0.0F;
  std::optional<float> total_norm;
  std::uint64_t tokens = 0;  // read so far, this step included
  Index ignored_targets = 0;
  double seconds = 0.0;                // of this step
  std::string parameters_sha256 = {};  // after this step; empty when it was not due
  std::string card = {};               // of the run up to this step (identity_card.h)
};

struct EvaluationMetrics {
  Index step = 0;
  double eval_loss = 0.0;  // mean over the held-back tail, natural logarithm
  double bits_per_byte = 0.0;
  std::optional<double> accuracy;  // of a model that tells classes; then there are no bits per byte
  bool best = false;               // of all evaluations so far
};

nlohmann::ordered_json to_json(const StepMetrics& metrics);
nlohmann::ordered_json to_json(const EvaluationMetrics& metrics);

// What stands beside an archive.
struct Sidecar {
  Index step = 0;
  std::string extension = ".samba";  // of the checkpoint's name: ".samba", ".mlp"
  nlohmann::ordered_json tokenizer = {{"kind", "bytes"}, {"vocab", 256}};
  std::string profile;  // of the model
  std::string data_order;
  std::uint64_t data_seed = 0;
  std::uint64_t rows_drawn = 0;  // windows read so far: the next step's first row has this number
  std::string sha256;            // of the archive
  std::string card = {};         // of the run up to this step
  bool best = false;             // by the held-out loss: the file `best` names it, it stays
};

class RunFolder {
 public:
  // A new run. An existing run in `folder` is refused (Error(value)), or with `force` moved to "FOLDER.old-N".
  static std::unique_ptr<RunFolder> create(const Path& folder, bool force);
  // An old run to go on with: a run folder, or one of its archives.
  static std::unique_ptr<RunFolder> resume(const Path& path);
  // The run of rank 0 as another rank has it: every call that writes does nothing, but saves together with the others.
  // `archive`: what resume_archive() tells. Error(value) when the folder cannot be seen from here.
  static std::unique_ptr<RunFolder> follow(const Path& folder, const Path& archive);
  ~RunFolder();

  const Path& folder() const { return folder_; }
  spdlog::logger& log() { return *log_; }

  nlohmann::json config() const;  // of config.json
  void write_config(const nlohmann::ordered_json& config);

  // The archive to resume from: the one named, else the one in `latest`.
  Path resume_archive() const;

  // The identity card that stands beside an archive; empty when there is none.
  static std::string card_beside(const Path& archive);

  void add_metrics(const nlohmann::ordered_json& line);
  // Forgets the metrics after `step`: a run that died after its last checkpoint takes those steps again.
  void cut_metrics(Index step);
  // The evaluations of metrics.jsonl: step, held-out loss.
  std::vector<std::pair<Index, double>> evaluations() const;
  void add_sample(Index step, const std::string& text);
  // Keeps what a step read. Returns the file; empty when nothing was written because the run has kMostBatches of them.
  Path add_batch(const StepBatch& batch);
  static constexpr std::size_t kMostBatches = 32;
  // Draws loss.svg from metrics.jsonl.
  void draw_loss() const;

  // `save` writes the archive to the path it is given, checkpoint_path(), and returns its SHA-256. Then come the
  // sidecar, `latest`, and the removal of checkpoints the configuration does not keep. Returns the path of the archive.
  Path checkpoint_path(Index step, const std::string& extension) const;
  Path add_checkpoint(Index step, const CheckpointConfig& keep, Sidecar sidecar,
                      const std::function<std::string(const Path&)>& save);

  // The checkpoint of `step` is the best; none when it is not there, or 0.
  void set_best(Index step);

  std::vector<Index> checkpoint_steps() const;  // ascending

 private:
  RunFolder() = default;
  RunFolder(Path folder, bool must_exist);
  void remove_old(Index newest, const CheckpointConfig& keep) const;

  Path folder_;
  Path archive_;  // the one named to resume(), or empty
  std::unique_ptr<FolderLock> lock_;
  bool follows_ = false;
  std::shared_ptr<spdlog::logger> log_;
};

// "step-00000020.samba"
std::string checkpoint_name(Index step, const std::string& extension = ".samba");

// The first free name "FOLDER.old-N".
Path old_folder_name(const Path& folder);

// The model a user means: a file, a safetensors folder, or the newest checkpoint of a run folder. Error(value) when
// there is none.
Path find_checkpoint(const Path& path);

}  // namespace samba
