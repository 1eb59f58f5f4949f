// Every command that writes, with its system calls failing in each of the ways that devices have: of each kind of call
// up to SAMBA_FAULTS (12), evenly among all of them; 0: every single one.
#include <cstdlib>

#include "fault_scenarios.h"

namespace samba {
namespace {

std::vector<long> chosen(long calls) {
  const char* text = std::getenv("SAMBA_FAULTS");
  const long most = text == nullptr ? 12 : std::atol(text);
  const long count = most > 0 ? std::min(most, calls) : calls;
  std::vector<long> numbers;
  for (long i = 0; i < count; ++i) numbers.push_back(count == 1 ? 1 : 1 + (calls - 1) * i / (count - 1));
  return numbers;
}

}  // namespace

TEST_CASE("whichever system call fails, the files are whole and the work can go on with the same bits") {
#if defined(__SANITIZE_ADDRESS__)
  WARN("not run: the address sanitizer does not go with a preloaded library");
#else
  for (const FaultScenario& scenario : fault_scenarios()) {
    FaultCounts counts;
    FaultWalk walk(scenario);
    for (const Fault& fault : kFileFaults) {
      walk.walk(fault, chosen, counts);
    }
    CHECK(counts.refused > 0);
    WARN(scenario.name << ": " << counts.injected << " faults, " << counts.refused << " refused with exit code 4, "
                       << counts.tolerated << " without consequence");
  }
#endif
}

}  // namespace samba
