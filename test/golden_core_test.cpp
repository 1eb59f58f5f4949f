// The recorded cases of test/golden/core on every executor.
#include <catch2/catch.hpp>

#include "golden.h"

namespace samba {
namespace {

const Golden kCore = {{"core"}, 74};

}  // namespace

TEST_CASE("every core case has the recorded bits on the reference executor") { check_golden(kCore, "reference"); }

TEST_CASE("every core case has the recorded bits on the cpu, on each instruction set and number of threads") {
  for_each_cpu([](const ExecutorOptions& options) { check_golden(kCore, "cpu", options); });
}

}  // namespace samba
