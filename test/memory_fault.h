// Runs commands of samba where memory or threads run out, and checks that the user is told so.
#pragma once

#include "fault_scenarios.h"
#include "samba/core/sha256.h"

namespace samba {

// Without those whose memory is mostly asked for by libraries of others.
inline std::vector<FaultScenario> memory_scenarios() {
  std::vector<FaultScenario> scenarios = fault_scenarios();
  std::erase_if(scenarios, [](const FaultScenario& one) { return one.foreign; });
  return scenarios;
}

// A command that is run in one folder again and again, over its own files.
class MemoryFaults {
 public:
  explicit MemoryFaults(FaultScenario scenario) : scenario_(std::move(scenario)) {
    scenario_.lay(fresh(work()));  // where the command runs: files may name their place
    std::filesystem::copy(work(), folder_ / "template", std::filesystem::copy_options::recursive);
    const CommandResult calm = run({});
    INFO(scenario_.name << ": " << calm.err);
    REQUIRE(calm.code == 0);
    wanted_ = outputs();
  }

  const std::string& name() const { return scenario_.name; }
  Path report() const { return folder_ / "report"; }

  // How often `call` ("malloc", "thread") is made in an undisturbed run.
  long calls(const std::string& call) {
    lay();
    run([&] { preload(call, 0, false); });
    long count = 0;
    std::istringstream(read_file(report())) >> count;
    return count;
  }
  // The call with this number fails, and with `from` every later one.
  void fail_call(const std::string& call, long number, bool from, FaultCounts& counts) {
    check(
        call + " " + std::to_string(number) + (from ? " and all behind it" : ""), [&] { preload(call, number, from); },
        false, counts);
  }
  // The process may have this many bytes of address space.
  void limit_memory(std::uint64_t bytes, FaultCounts& counts) {
    check(
        "address space of " + std::to_string(bytes) + " bytes",
        [bytes] {
          const rlimit limit{bytes, bytes};
          ::setrlimit(RLIMIT_AS, &limit);
        },
        true, counts);
  }

 private:
  using Contents = std::map<std::string, std::string>;

  static Path fresh(const Path& folder) {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directory(folder);
    return folder;
  }
  Path work() const { return folder_ / "work"; }
  void lay() const {
    std::filesystem::copy(folder_ / "template", fresh(work()), std::filesystem::copy_options::recursive);
  }
  Contents outputs() const {
    Contents result;
    for (const std::string& name : scenario_.outputs) {
      if (std::filesystem::exists(work() / name)) result[name] = sha256_hex(read_file(work() / name));
    }
    return result;
  }
  CommandResult run(const std::function<void()>& prepare) const {
    return Command(scenario_.command(work()), 0, "/dev/null", prepare).finish();
  }
  void preload(const std::string& call, long number, bool from) const {
    ::setenv("LD_PRELOAD", SAMBA_FAULT_SHIM, 1);
    ::setenv("SAMBA_FAULT_CALL", call.c_str(), 1);
    ::setenv("SAMBA_FAULT_KIND", call == "thread" ? "EAGAIN" : "ENOMEM", 1);
    ::setenv("SAMBA_FAULT_NUMBER", std::to_string(number).c_str(), 1);
    ::setenv("SAMBA_FAULT_FROM", from ? "1" : "0", 1);
    ::setenv("SAMBA_FAULT_REPORT", report().c_str(), 1);
  }

  void check(const std::string& what, const std::function<void()>& prepare, bool limits, FaultCounts& counts) {
    lay();
    const Contents before = outputs();
    const CommandResult result = run(prepare);
    // The system's loader, or a library that is set up, failed before samba began: then nothing of samba begins.
    if (limits && result.code >= 127 && Command({"--version"}, 0, "/dev/null", prepare).finish().code >= 127) return;
    INFO(scenario_.name << ": " << what << ": exit " << result.code << ": " << result.err);
    ++counts.injected;
    CHECK((result.code == 0 || result.code == 4));
    for (const auto& entry : std::filesystem::recursive_directory_iterator(work())) {
      INFO(entry.path().string());
      CHECK(entry.path().filename().string().find(".tmp-") == std::string::npos);
    }
    const Contents found = outputs();
    if (result.code == 0) {
      ++counts.tolerated;
      CHECK(found == wanted_);
      return;
    }
    ++counts.refused;
    CHECK(result.err.starts_with("samba: "));
    for (const auto& [name, digest] : found) {
      const bool old = before.contains(name) && before.at(name) == digest;
      INFO(name);
      CHECK((old || (wanted_.contains(name) && wanted_.at(name) == digest)));
    }
  }

  FaultScenario scenario_;
  TemporaryFolder folder_;
  Contents wanted_;
};

}  // namespace samba
