// The recorded cases of the small MLP on every executor: logits, from packed weights too, training steps with every
// stage, checkpoint files accepted and refused.
#include <catch2/catch.hpp>

#include "golden.h"

namespace samba {

TEST_CASE("every MLP case has the recorded bits on the reference executor") {
  check_golden({{"mlp"}, 15}, "reference");
}

TEST_CASE("every MLP case has the recorded bits on the cpu, on each instruction set and number of threads") {
  for_each_cpu([](const ExecutorOptions& options) { check_golden({{"mlp"}, 15}, "cpu", options); });
}

}  // namespace samba
