// The tutorials: stacks trained on a text, every loss, norm and hash of every step, the final checkpoint and what it
// continues: all steps on the cpu and on the reference executor, the first ones on each other instruction set and on
// the GPU kernels.
#include <algorithm>
#include <catch2/catch.hpp>

#include "golden.h"

namespace samba {
namespace {

const Golden kTutorials = {{"samba/tutorial_hybrid_1m.safetensors", "samba/tutorial_untied_dropout_acc2.safetensors"},
                           2};

}  // namespace

TEST_CASE("the tutorials reach every recorded value on the cpu") { check_golden(kTutorials, "cpu"); }

TEST_CASE("the tutorials reach every recorded value in the first steps with one thread on each instruction set") {
  Golden golden = kTutorials;
  golden.options.most_tutorial_steps = 2;
  for (const std::string& instruction_set : instruction_sets()) {
    check_golden(golden, "cpu", ExecutorOptions{1, instruction_set});
  }
}

TEST_CASE("the tutorials reach every recorded value on the reference executor") {
  check_golden(kTutorials, "reference");
}

TEST_CASE("the tutorials reach every recorded value in the first steps on the GPU kernels of the host adapter") {
  const std::vector<std::string> devices = compiled_devices();
  if (std::find(devices.begin(), devices.end(), "gpu-host") == devices.end()) {
    WARN("skipped: the device gpu-host is not compiled in");
    return;
  }
  Golden golden = kTutorials;
  golden.options.most_tutorial_steps = 2;
  check_golden(golden, "gpu-host", ExecutorOptions{2, "warp32"});
}

}  // namespace samba
