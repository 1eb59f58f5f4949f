// What a run has written down of itself: the lines of its metrics.jsonl, and what stands beside them in its folder.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "samba/core/array.h"
#include "samba/core/files.h"

namespace samba {

struct RecordedStep {
  Index step = 0;
  double loss = 0.0, lr = 0.0;
  std::optional<double> total_norm;
  std::uint64_t tokens = 0;
  double seconds = 0.0;
};

struct RecordedEvaluation {
  Index step = 0;
  double loss = 0.0;
  std::optional<double> bits_per_byte, accuracy;
};

struct RunRecord {
  std::string name;                 // the path as it was given
  std::vector<RecordedStep> steps;  // ascending
  std::vector<RecordedEvaluation> evaluations;
  std::string card;                // identity card after the last step, or empty
  std::size_t damaged_lines = 0;   // left out: of a metrics.jsonl that was cut, say
  nlohmann::ordered_json config;   // config.json; null without
  std::string checkpoint, sha256;  // the newest one and the digest of its file; empty without
  std::string sample;              // what samples.txt ends with, from its last heading on; empty without

  // The tokens read up to a step; 0 before the first.
  std::uint64_t tokens_at(Index step) const;
};

// The lines of a metrics.jsonl; without a file none. Where steps come again, the later lines count.
RunRecord read_metrics(const Path& metrics);

// `path`: the folder of a run, or a metrics.jsonl. Error(value) when it is neither, or no step was recorded.
RunRecord read_run(const Path& path);

}  // namespace samba
