// Published columns, digests on which GPUs of three vendors and CPUs agree: the plain functions, the sessions and the
// small parts of the blocks and stacks. The large batches are in test/long.
#include <catch2/catch.hpp>

#include "golden.h"

namespace samba {
namespace {

bool is_large(const std::string& id) {
  return id.ends_with(".batchscale") || id.ends_with(".ragged") || id.ends_with(".batchgrad");
}

Golden small_columns() {
  Golden golden = {{"columns"}, 334};
  for (const char* fixture : {"base", "odd", "denormal", "denormal_ftz", "dupes", "hashed"}) {
    golden.not_applicable[std::string("columns/gemm-int15[") + fixture + "].train"] = kNoFixed15;
  }
  golden.options.accept = [](const std::string& id, const std::string&) { return !is_large(id); };
  return golden;
}

}  // namespace

TEST_CASE("the published digests of small columns hold on the reference executor") {
  check_golden(small_columns(), "reference");
}

TEST_CASE("the published digests of small columns hold on the cpu, on each instruction set") {
  for_each_instruction_set([](const ExecutorOptions& options) { check_golden(small_columns(), "cpu", options); });
}

}  // namespace samba
