// Runs folders and files of test/golden through the driver of lib/verify and fails on every case that is not equal.
#pragma once

#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "samba/backends/registry.h"
#include "samba/verify/verify.h"

namespace samba {

// The reason of each case that is not applicable, by id.
using Reasons = std::map<std::string, std::string>;

struct Golden {
  std::vector<std::string> names;  // files or folders of test/golden
  std::size_t cases = 0;           // how many there are: none may drop out silently
  Reasons not_applicable = {};     // exactly these are not run
  verify::VerifyOptions options = {};
};

inline std::string lines_of(const Reasons& reasons) {
  std::string lines;
  for (const auto& [id, reason] : reasons) lines += id + ": " + reason + "\n";
  return lines;
}

// Every case of the files must be equal, but those listed.
inline void check_golden(const Golden& golden, const std::string& device, const ExecutorOptions& options = {}) {
  const auto executor = make_executor(device, options);
  std::vector<std::filesystem::path> paths;
  for (const std::string& name : golden.names) paths.push_back(std::filesystem::path(SAMBA_GOLDEN_DIR) / name);
  INFO("device " << executor->name() << ", instruction set " << executor->instruction_set() << ", threads "
                 << executor->threads());
  const verify::VerifyReport report = verify::verify_cases(*executor, paths, golden.options);
  Reasons reasons;
  for (const verify::CaseResult& result : report.results) {
    INFO(verify::result_line(result));
    CHECK(result.verdict != verify::Verdict::different);
    if (result.verdict == verify::Verdict::not_applicable) reasons[result.id] = result.reason;
  }
  CHECK(report.results.size() == golden.cases);
  CHECK(lines_of(reasons) == lines_of(golden.not_applicable));
  CHECK(report.count(verify::Verdict::equal) == golden.cases - golden.not_applicable.size());
}

// Every instruction set of this machine with 1, 2 and 3 threads.
template <class Run>
void for_each_cpu(Run&& run) {
  for (const std::string& instruction_set : instruction_sets()) {
    for (const int threads : {1, 2, 3}) run(ExecutorOptions{threads, instruction_set});
  }
}

// All of `golden` on the best instruction set with two threads; of the other ones, with three threads and one, the part
// `some`: for cases that take long.
inline void check_golden_on_cpu(const Golden& golden, const Golden& some) {
  const std::vector<std::string> sets = instruction_sets();
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const int threads = i == 0 ? 2 : i % 2 == 1 ? 3 : 1;
    check_golden(i == 0 ? golden : some, "cpu", ExecutorOptions{threads, sets[i]});
  }
}

inline const char* const kUntypedLength = "the interface cannot hold a length that is no integer";

}  // namespace samba
