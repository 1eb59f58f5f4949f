// A benchmark run: which rows, in which order, within which time.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "samba/bench/shapes.h"

namespace samba::bench {

struct BenchOptions {
  std::vector<std::string> rows;  // names, or parts of names between slashes; empty: all
  bool quick = false;             // the rows marked so, within a minute
};

struct SkippedRow {
  std::string name;
  std::string reason;
};

struct BenchReport {
  Machine machine;
  std::vector<Row> rows;
  std::vector<SkippedRow> skipped;
};

// True when `part` is `name`, or a run of its parts: "decode", "llama_28m/1t", "prefill/llama_28m".
bool selects(const std::string& part, const std::string& name);

// The cases that have a row wanted by `options`; Error(value) for a name that selects nothing, with the nearest one.
std::vector<Case> selected_cases(const std::vector<Case>& cases, const BenchOptions& options);
std::vector<std::string> selected_rows(const std::vector<Case>& cases, const BenchOptions& options);

// What a run tells; every function may be empty.
struct BenchEvents {
  std::function<void(const Machine&)> on_machine;  // its limits were measured
  std::function<void(std::size_t done, std::size_t total, const std::string& name)> progress;
  std::function<void(const Row&)> on_row;
  std::function<bool()> interrupted;  // asked before each case
};

// Measures the machine's limits, then every case. Of `context` the caller sets what the flags say; machine and blas are
// filled in.
BenchReport run_bench(Context context, const std::vector<Case>& cases, const BenchOptions& options,
                      const BenchEvents& events);

}  // namespace samba::bench
