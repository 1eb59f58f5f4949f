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
  CHECK(reasons == golden.not_applicable);
  CHECK(report.count(verify::Verdict::equal) == golden.cases - golden.not_applicable.size());
}

// Every instruction set of this machine with 1, 2 and 3 threads.
template <class Run>
void for_each_cpu(Run&& run) {
  for (const std::string& instruction_set : instruction_sets()) {
    for (const int threads : {1, 2, 3}) run(ExecutorOptions{threads, instruction_set});
  }
}

// Every instruction set once, each with another number of threads: for cases that take long.
template <class Run>
void for_each_instruction_set(Run&& run) {
  int threads = 3;
  for (const std::string& instruction_set : instruction_sets()) {
    run(ExecutorOptions{threads, instruction_set});
    threads = threads == 1 ? 3 : threads - 1;
  }
}

inline const char* const kNoFixed15 = "samba has no numeric profile fixed15_v1";
inline const char* const kUntypedLength = "the interface cannot hold a length that is no integer";

}  // namespace samba
