// The recorded cases of stacks, losses, optimizers, schedules and checkpoints on every executor; the tutorials, which
// train longer, are in test/long.
#include <catch2/catch.hpp>

#include "golden.h"

namespace samba {
namespace {

Golden samba_cases() {
  Golden golden = {
      {"samba"},
      165,
      {{"samba/stack_refusals/lengths_bool", kUntypedLength}, {"samba/stack_refusals/lengths_float", kUntypedLength}}};
  golden.options.accept = [](const std::string&, const std::string& kind) { return kind != "tutorial"; };
  return golden;
}

}  // namespace

TEST_CASE("every stack case has the recorded bits on the reference executor") {
  check_golden(samba_cases(), "reference");
}

TEST_CASE("every stack case has the recorded bits on the cpu, on each instruction set and number of threads") {
  for_each_cpu([](const ExecutorOptions& options) { check_golden(samba_cases(), "cpu", options); });
}

}  // namespace samba
