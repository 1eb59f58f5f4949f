// Every command that writes, with each of its system calls failing in each of the ways that devices have.
#include <numeric>

#include "fault_scenarios.h"

namespace samba {

TEST_CASE("whichever system call fails, the files are whole and the work can go on with the same bits") {
#if defined(__SANITIZE_ADDRESS__)
  WARN("not run: the address sanitizer does not go with a preloaded library");
#else
  for (const FaultScenario& scenario : fault_scenarios()) {
    FaultCounts counts;
    FaultWalk walk(scenario);
    for (const Fault& fault : kFileFaults) {
      walk.walk(
          fault,
          [](long calls) {
            std::vector<long> all(static_cast<std::size_t>(calls));
            std::iota(all.begin(), all.end(), 1L);
            return all;
          },
          counts);
    }
    CHECK(counts.refused > 0);
    WARN(scenario.name << ": " << counts.injected << " faults, " << counts.refused << " refused with exit code 4, "
                       << counts.tolerated << " without consequence");
  }
#endif
}

}  // namespace samba
