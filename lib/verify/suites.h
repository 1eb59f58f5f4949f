// The suites that come with samba, and on what they run.
//
// A suite is a folder of recorded cases below share/samba/suites, beside the executable or above it: in the build tree
// a link to test/golden, after installation a copy. The plan says which of them run on which device, instruction set
// and number of threads; what it leaves out for time is counted and told, never taken for verified.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "samba/verify/verify.h"

namespace samba::verify {

struct Suite {
  std::string name;  // "columns"
  std::string about;
  std::filesystem::path folder;
};

// Where the suites are: $SAMBA_SUITES, or share/samba/suites beside or above the folder of `executable`. Error(value)
// when they are nowhere.
std::filesystem::path find_suites(const std::filesystem::path& executable);
// Those of the folder, the most telling first.
std::vector<Suite> builtin_suites(const std::filesystem::path& folder);
// The ones of these names, all when there are none. Error(value) for an unknown name, with the nearest known one.
std::vector<Suite> chosen_suites(const std::vector<Suite>& suites, std::span<const std::string> names);

// How many of the cases run: each holds the ones after it.
enum class Depth {
  whole,     // everything
  most,      // without the two tutorials (training runs of many steps)
  moderate,  // also without batches of 1,024 rows and the largest stacks of the hash suites
  small,     // blocks, stacks and functions of the case files, and one fixture of the published columns
};
std::string_view depth_text(Depth depth);  // "without tutorials"
bool belongs(Depth depth, const std::string& id, const std::string& kind);

struct Configuration {
  std::string device;           // "cpu"
  std::string instruction_set;  // of the cpu
  int threads = 1;
  int side_by_side = 1;  // cases that run at the same time, each on an executor of its own
  Depth depth = Depth::whole;

  std::string name() const;  // "cpu avx512, 2 threads"
};

struct PlanRequest {
  bool quick = false;
  int cores = 1;  // this process may use
  std::vector<std::string> devices;
  std::vector<std::string> instruction_sets;  // of the cpu, best first
  std::vector<int> threads;                   // empty: 1, 2 and all
};
std::vector<Configuration> plan_of(const PlanRequest& request);

// One configuration that ran.
struct ConfigurationRun {
  Configuration configuration;
  VerifyReport report;
  std::size_t left_out = 0;  // cases of the chosen suites that it did not run
  double seconds = 0.0;
};

struct SuitesReport {
  std::vector<Suite> suites;
  std::vector<std::size_t> suite_cases;  // how many each has
  std::vector<ConfigurationRun> runs;
  std::vector<std::string> absent;  // "device cuda: not compiled into this program"
  double seconds = 0.0;

  bool passed() const;
};

struct SuitesProgress {
  std::function<void(std::size_t done, std::size_t total, const std::string& what)> update;
  std::function<void(const Configuration&, const CaseResult&)> done;
};

// Runs the plan. An executor is made for each configuration by `make`.
using MakeConfigured = std::function<std::unique_ptr<Executor>(const Configuration&)>;
SuitesReport run_suites(const std::vector<Suite>& suites, std::span<const Configuration> plan,
                        const MakeConfigured& make, const VerifyOptions& options, const SuitesProgress& progress);

// The tables of suites and of configurations, and the account of what they cover.
std::string suites_table(const SuitesReport& report);
// "cases: N equal, N different, N not applicable": every case once, equal when it was on everything it ran on.
std::string closing_line(const SuitesReport& report);
nlohmann::json suites_json(const SuitesReport& report);

}  // namespace samba::verify
