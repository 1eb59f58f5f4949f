// Timing of things that are compared with each other: all sides run in turn, round after round, so that whatever else
// the machine does meets all of them. Minima and medians of wall time, and the CPU time of the whole process.
#pragma once

#include <functional>
#include <span>
#include <vector>

namespace samba::bench {

struct Side {
  std::function<void()> work;                        // what is timed
  std::function<void()> prepare = {};                // before each repetition, not timed; may be empty
  int threads = 1;                                   // more than one: other libraries' threads are left to fall asleep
  std::function<void(double seconds)> observe = {};  // each repetition's wall time; may be empty
};

struct Timing {
  double wall_min = 0.0, wall_median = 0.0;  // seconds
  double cpu_min = 0.0, cpu_median = 0.0;    // of all threads of the process
  int repetitions = 0;
};

// Lets somebody else measure between two rounds: asked before each round (false: no more), told after it.
struct Pace {
  std::function<bool()> before;
  std::function<void()> after;
};

struct MeasureOptions {
  int repetitions = 7;           // after a warm-up of one
  double most_seconds = 0;       // no further round is begun after this long, once there were three; 0: no limit
  bool foreign_threads = false;  // a side runs threads of another library, which spin on after their work
  Pace pace = {};                // empty: one round after the other
};

std::vector<Timing> measure(std::span<const Side> sides, const MeasureOptions& options);

double wall_seconds();  // of a clock that never goes back
double cpu_seconds();   // of all threads of this process

}  // namespace samba::bench
