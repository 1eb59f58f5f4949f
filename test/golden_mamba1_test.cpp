// The recorded cases of the Mamba-1 block: forward, decode, refusals, gradients, hash suites and published columns.
#include <catch2/catch.hpp>

#include "golden.h"

namespace samba {
namespace {

const std::vector<std::string> kFiles = {"mamba1", "mamba12_backward", "hashes/mamba1.json", "columns/mamba1.json",
                                         "columns/mamba1-decode-session.json"};

verify::VerifyOptions of_mamba1() {
  verify::VerifyOptions options;
  options.accept = [](const std::string& id, const std::string&) {
    return !id.starts_with("mamba12_backward/") || id.find("/m1_") != std::string::npos;
  };
  return options;
}

void check_all(const std::string& device, const ExecutorOptions& options = {}) {
  const verify::VerifyReport report = check_golden(kFiles, device, options, of_mamba1());
  for (const verify::CaseResult& result : report.results) {
    if (result.verdict != verify::Verdict::not_applicable) continue;
    INFO(result.id << ": " << result.reason);
    const bool expected = result.reason == "samba has no bfloat16 weights" ||
                          result.reason == "samba has no int8 weights" ||
                          result.reason == "the interface cannot hold a length that is no integer";
    CHECK(expected);
  }
}

}  // namespace

TEST_CASE("every mamba1 case has the recorded bits on the reference executor") { check_all("reference"); }

TEST_CASE("every mamba1 case has the recorded bits on the cpu, on each instruction set and number of threads") {
  for_each_cpu([](const ExecutorOptions& options) { check_all("cpu", options); });
}

}  // namespace samba
