// Takes a stretch of a finished run again and compares every number with the run's record: losses, learning rates,
// gradient norms, identity cards, digests of parameters, whole checkpoint files.
//
//   ReplayReport report = replay_run(*executor, "runs/first", {41, 60}, {});
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "samba/core/files.h"
#include "samba/kernels/executor.h"

namespace samba::verify {

struct ReplayRange {
  Index first = 1;
  Index last = 0;  // 0: the last step of the record
};
// The newest checkpoint that a run still has of a step before `step`; empty when there is none.
Path checkpoint_before(const Path& run, Index step);

ReplayRange parse_range(const std::string& text);  // "5..12", "5.." or "5"

struct ReplayReport {
  ReplayRange range;
  std::string from;             // the checkpoint the stretch begins from, or "the initial values"
  Index steps = 0;              // compared
  Index numbers = 0;            // of them
  Index parameter_digests = 0;  // of them
  Index checkpoints = 0;        // whole files that were written again
  std::string card;             // after the last step
  // Where the run and its replay part; empty when they do not.
  Index step = 0;
  std::string difference;

  bool passed() const { return difference.empty(); }
};

// Reads the run and changes nothing in it. Begins from the newest checkpoint before the stretch, else from the seed.
// Error(value): no run, steps that the record does not have, data that are not those of the run.
ReplayReport replay_run(Executor& executor, const Path& run, ReplayRange range,
                        const std::function<void(Index step)>& on_step = {});

nlohmann::json replay_json(const ReplayReport& report);

}  // namespace samba::verify
