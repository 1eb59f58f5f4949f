// The rows of a benchmark, and the cases that measure them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "samba/backends/registry.h"
#include "samba/bench/cost.h"
#include "samba/bench/machine.h"
#include "samba/bench/measure.h"
#include "samba/core/files.h"

namespace samba::cpu {
class OpenBlas;
}

namespace samba::bench {

// One line of the result. `ratio` says how near the limit is: achieved / limit where more is better, limit / achieved
// where less is; 1 is the limit itself.
struct Row {
  std::string name = {};  // "decode/llama_28m/1t"
  int threads = 1;
  double achieved = 0.0;
  double limit = 0.0;
  std::string unit = {};
  bool less_is_better = false;
  std::string limit_name = {};  // "FMA peak", "read bandwidth", ...
  std::string peer_name = {};   // of what was measured beside it; empty: nothing
  double peer = 0.0;            // in `unit`
  Cost cost = {};               // of one repetition; 0 flops: the row has no place in a roofline
  Timing timing = {};

  double ratio() const;
  double against_peer() const;  // above 1: better than the peer
};

// What the cases work with.
struct Context {
  std::string device = "auto";
  std::string instruction_set;
  NumericMode numeric_mode = NumericMode::identical;
  std::vector<int> threads{1};  // ascending
  Machine machine;
  MeasureOptions measuring;
  const cpu::OpenBlas* blas = nullptr;  // null: there is none
  Path executable;                      // the program itself, for rows about whole processes; empty: they are left out

  std::unique_ptr<Executor> executor(int count) const { return executor(count, numeric_mode); }
  std::unique_ptr<Executor> executor(int count, NumericMode mode) const {
    return make_executor(device, {.threads = count, .instruction_set = instruction_set, .numeric_mode = mode});
  }
};

// Asked for a row's name: whether it is wanted.
using Wanted = std::function<bool(const std::string&)>;

struct Case {
  std::vector<std::string> rows;
  bool quick = false;  // part of --quick
  std::function<std::vector<Row>(const Context&, const Wanted&)> run;
};

// "prefill/llama_28m" and 2 -> "prefill/llama_28m/2t"
std::string thread_row(const std::string& base, int threads);

// The names of the rows that measure_on_threads gives: one for each number of threads, and with several
// "speedup/BASE".
std::vector<std::string> thread_rows(const std::string& base, const std::vector<int>& threads);

// Something that is measured on one executor: made anew for each number of threads.
struct Subject {
  virtual ~Subject() = default;
  virtual void prepare() {}  // before each repetition, not timed
  virtual void run() = 0;
};

struct ThreadMeasurement {
  std::string base;
  std::function<std::unique_ptr<Subject>(Executor&)> make;
  Cost cost;           // of one run()
  double units = 1.0;  // done by one run()
  std::string unit;    // "tokens/s"
};

// The rows of thread_rows that are wanted, all numbers of threads interleaved.
std::vector<Row> measure_on_threads(const Context& context, const Wanted& wanted, const ThreadMeasurement& measurement);

}  // namespace samba::bench
