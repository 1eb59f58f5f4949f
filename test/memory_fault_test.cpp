// Memory and threads that run out: a message and exit code 4, whole files, never a crash. The long walk is
// test/long/memory_fault_walk_test.cpp.
#include "memory_fault.h"

namespace samba {

TEST_CASE("an allocation that fails anywhere is a message and exit code 4") {
#if defined(__SANITIZE_ADDRESS__)
  WARN("not run: the address sanitizer does not go with a preloaded library");
#else
  constexpr long kPlaces = 12;
  FaultCounts counts;
  for (const FaultScenario& scenario : memory_scenarios()) {
    MemoryFaults faults(scenario);
    const long calls = faults.calls("malloc");
    for (long place = 0; place < kPlaces; ++place) {
      faults.fail_call("malloc", 1 + (calls - 1) * place / (kPlaces - 1), place % 2 == 0, counts);
    }
  }
  CHECK(counts.refused > 50);
  WARN(counts.injected << " failing allocations: " << counts.refused << " refused, " << counts.tolerated
                       << " without consequence");
#endif
}

TEST_CASE("threads that cannot be started are a message and exit code 4") {
#if !defined(__SANITIZE_ADDRESS__)
  FaultScenario scenario = training_scenario();
  const auto command = scenario.command;
  scenario.command = [=](const Path& folder) {
    std::vector<std::string> arguments = command(folder);
    arguments.insert(arguments.end(), {"--set", "steps=1"});
    std::replace(arguments.begin(), arguments.end(), std::string("1"), std::string("4"));  // --threads
    return arguments;
  };
  MemoryFaults faults(scenario);
  const long threads = faults.calls("thread");
  CHECK(threads == 3);
  FaultCounts counts;
  for (long number = 1; number <= threads; ++number) faults.fail_call("thread", number, false, counts);
  CHECK(counts.refused == 3);
#endif
}

TEST_CASE("a wrong address that no failed allocation explains ends the program by the signal itself") {
#if !defined(__SANITIZE_ADDRESS__)
  const TinyRun run;
  Command command({"train", "--config", run.file("tiny.json"), "--out", run.file("run"), "--set", "steps=1000000",
                   "--set", "schedule.total_steps=1000000", "--progress", "never"},
                  0, "/dev/null", [&] { write_text(run.path() / "pid", std::to_string(::getpid())); });
  while (!std::filesystem::exists(run.path() / "run/metrics.jsonl")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(std::stoi(read_file(run.path() / "pid")), SIGSEGV);
  CHECK(command.finish().code == 128 + SIGSEGV);
#endif
}

}  // namespace samba
