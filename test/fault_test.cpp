// Every command that writes, with a system call failing: the first of its kind, one in the middle, the last. The whole
// walk is test/long/fault_walk_test.cpp.
#include "fault_scenarios.h"

namespace samba {

TEST_CASE("a failing system call leaves a message, the old files or the new ones, and work that can go on") {
#if defined(__SANITIZE_ADDRESS__)
  WARN("not run: the address sanitizer does not go with a preloaded library");
#else
  FaultCounts counts;
  std::size_t turn = 0;
  for (const FaultScenario& scenario : fault_scenarios()) {
    FaultWalk walk(scenario);
    for (const Fault& fault : kFileFaults) {
      walk.walk(
          fault,
          [&](long calls) -> std::vector<long> {
            if (calls == 0) return {};
            const long places[] = {1, (calls + 1) / 2, calls};
            return {places[turn++ % 3]};
          },
          counts);
    }
  }
  CHECK(counts.refused > 100);
  CHECK(counts.tolerated > 50);
  WARN(counts.injected << " faults: " << counts.refused << " refused with exit code 4, " << counts.tolerated
                       << " without consequence");
#endif
}

}  // namespace samba
