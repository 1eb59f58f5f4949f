// The recorded cases of packed weights on every executor.
#include <catch2/catch.hpp>

#include "golden.h"

namespace samba {
namespace {

const Golden kLowbit = {{"lowbit"}, 12};

}  // namespace

TEST_CASE("every case of packed weights has the recorded bits on the reference executor") {
  check_golden(kLowbit, "reference");
}

TEST_CASE("every case of packed weights has the recorded bits on the cpu, on each instruction set") {
  for_each_cpu([](const ExecutorOptions& options) { check_golden(kLowbit, "cpu", options); });
}

}  // namespace samba
