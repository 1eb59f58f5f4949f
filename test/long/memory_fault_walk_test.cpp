// Every command that writes with an allocation failing at many places (SAMBA_FAULTS for each command, 60), and with
// less and less address space.
#include <cstdlib>
#include <random>

#include "memory_fault.h"

namespace samba {

TEST_CASE("whichever allocation fails, samba says so and leaves whole files") {
#if defined(__SANITIZE_ADDRESS__)
  WARN("not run: the address sanitizer does not go with a preloaded library");
#else
  const char* text = std::getenv("SAMBA_FAULTS");
  const int places = text == nullptr ? 60 : std::atoi(text);
  std::mt19937_64 random(20261130);
  for (const FaultScenario& scenario : fault_scenarios()) {
    FaultCounts counts;
    MemoryFaults faults(scenario);
    const long calls = faults.calls("malloc");
    for (int place = 0; place < places; ++place) {
      const long number = 1 + static_cast<long>(random() % static_cast<std::uint64_t>(calls));
      faults.fail_call("malloc", number, place % 2 == 0, counts);
    }
    CHECK(counts.refused > places / 4);
    WARN(scenario.name << ": " << calls << " allocations, " << counts.injected << " made to fail, " << counts.refused
                       << " refused with exit code 4, " << counts.tolerated << " without consequence");
  }
#endif
}

TEST_CASE("with any limit of the address space a command succeeds or says that memory is out") {
#if defined(__SANITIZE_ADDRESS__)
  WARN("not run: the address sanitizer needs all of the address space");
#else
  constexpr std::uint64_t kStep = std::uint64_t{1} << 20, kMost = std::uint64_t{256} << 20;
  for (const FaultScenario& scenario : fault_scenarios()) {
    FaultCounts counts;
    MemoryFaults faults(scenario);
    // From a limit that is too small for the loader up to one that is enough four times in a row.
    int enough = 0;
    for (std::uint64_t bytes = kStep; bytes < kMost && enough < 4; bytes += kStep) {
      const int before = counts.tolerated;
      faults.limit_memory(bytes, counts);
      enough = counts.tolerated > before ? enough + 1 : 0;
    }
    CHECK(enough == 4);
    CHECK(counts.refused > 0);
    WARN(scenario.name << ": " << counts.injected << " limits, " << counts.refused << " refused with exit code 4");
  }
#endif
}

}  // namespace samba
