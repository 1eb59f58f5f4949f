// A training run that a converted folder carries (docs/formats/model_folder.md): what the run's folder told of itself,
// kept in config.json, and its metrics, so that the run can go on from the converted folder with the bits of one that
// was not converted.
#pragma once

#include <nlohmann/json.hpp>

#include "samba/core/array.h"
#include "samba/core/files.h"

namespace samba {

// The lines of a run's metrics up to `step`: what a checkpoint's run has computed. Empty when there is no such file.
std::string metrics_until(const Path& metrics, Index step);
inline constexpr const char* kMetricsName = "metrics.jsonl";
// Where the metrics of a checkpoint's run lie; empty when it has none.
Path metrics_of_checkpoint(const Path& checkpoint);

// {"config": config.json of the run, "checkpoint": the file beside the checkpoint} of a checkpoint that lies in the
// folder of its run; null for any other file.
nlohmann::json run_of_checkpoint(const Path& checkpoint);

// The path to resume for `path`: itself, but for a converted folder. That one is moved to FOLDER.old-N, and in its
// place there is a run folder with the same model, moments, tokenizer, configuration and metrics. Error(value): the
// folder carries no run; Error(corrupt): what it says of the run does not fit its model.
struct ResumedFolder {
  Path path;
  Path moved_to;  // empty: nothing was moved
};
ResumedFolder run_folder_of(const Path& path);

}  // namespace samba
