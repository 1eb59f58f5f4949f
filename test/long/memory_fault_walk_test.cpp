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
  for (const FaultScenario& scenario : memory_scenarios()) {
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
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20, kStep = std::uint64_t{64} << 10, kMost = 256 * kMiB;
  int refused = 0;
  for (const FaultScenario& scenario : memory_scenarios()) {
    FaultCounts counts;
    MemoryFaults faults(scenario);
    // From the last whole MiB that the loader refuses, in small steps up to a limit that is enough eight times in a
    // row.
    std::uint64_t bytes = 8 * kMiB;
    for (; bytes < kMost && counts.injected == 0; bytes += kMiB) faults.limit_memory(bytes, counts);
    bytes -= 2 * kMiB;
    for (int enough = 0; bytes < kMost && enough < 8; bytes += kStep) {
      const int before = counts.tolerated;
      faults.limit_memory(bytes, counts);
      enough = counts.tolerated > before ? enough + 1 : 0;
    }
    CHECK(bytes < kMost);
    refused += counts.refused;
    WARN(scenario.name << ": " << counts.injected << " limits, " << counts.refused << " refused with exit code 4");
  }
  CHECK(refused > 0);
#endif
}

}  // namespace samba
