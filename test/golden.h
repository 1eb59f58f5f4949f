// Runs folders and files of test/golden through the driver of lib/verify and fails on every case that is not equal.
#pragma once

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "samba/backends/registry.h"
#include "samba/verify/verify.h"

namespace samba {

// All cases must be equal or not applicable; the report tells which.
inline verify::VerifyReport check_golden(const std::vector<std::string>& names, const std::string& device,
                                         const ExecutorOptions& executor_options = {},
                                         const verify::VerifyOptions& options = {}) {
  const auto executor = make_executor(device, executor_options);
  std::vector<std::filesystem::path> paths;
  for (const std::string& name : names) paths.push_back(std::filesystem::path(SAMBA_GOLDEN_DIR) / name);
  INFO("device " << executor->name() << ", instruction set " << executor->instruction_set() << ", threads "
                 << executor->threads());
  const verify::VerifyReport report = verify::verify_cases(*executor, paths, options);
  for (const verify::CaseResult& result : report.results) {
    INFO(verify::result_line(result));
    CHECK(result.verdict != verify::Verdict::different);
  }
  CHECK(report.count(verify::Verdict::equal) > 0);
  return report;
}

// Every instruction set of this machine with 1, 2 and 3 threads.
template <class Run>
void for_each_cpu(Run&& run) {
  for (const std::string& instruction_set : instruction_sets()) {
    for (const int threads : {1, 2, 3}) run(ExecutorOptions{threads, instruction_set});
  }
}

}  // namespace samba
