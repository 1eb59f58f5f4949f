// Runs a command of samba again and again, each time with another of its system calls failing (fault_shim), and checks
// what the user is left with: a message and the right exit code, the old file or the new one, nothing half-written, and
// that the same command, or the resumed run, then gives the bits of the undisturbed one.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <sstream>

#include "command.h"

namespace samba {

struct Fault {
  std::string call;
  std::string kind;
  bool harmless = false;  // the program must go on as if nothing had happened
};

// What devices do; a call that is not there may fail with them all.
inline const std::vector<Fault> kFileFaults = {
    {"open", "ENOSPC"},      {"open", "EMFILE"},       {"open", "EINTR"},        {"write", "ENOSPC"},
    {"write", "EIO"},        {"write", "short", true}, {"write", "EINTR", true}, {"read", "EIO"},
    {"read", "short", true}, {"read", "EINTR", true},  {"fsync", "EIO"},         {"fsync", "EINTR", true},
    {"close", "EIO"},        {"close", "EINTR", true}, {"rename", "EIO"},        {"fchmod", "EIO"},
    {"mkdir", "ENOSPC"},     {"mmap", "ENOMEM"},       {"mmap", "lost"}};

// A command, the files it finds, and the files it leaves.
struct FaultScenario {
  std::string name;
  // Lays the files in an empty folder.
  std::function<void(const Path& folder)> lay;
  // The command's arguments in that folder.
  std::function<std::vector<std::string>(const Path& folder)> command;
  // What to run where it failed, in place of the command: of a training run, to go on with it.
  std::function<std::vector<std::string>(const Path& folder)> retry = {};
  // The files that must be as they were before, or as an undisturbed command leaves them, relative to the folder.
  std::vector<std::string> outputs = {};
  // Files that change while the command works: only what they are in the end is compared.
  std::vector<std::string> changing = {};
  // Whether files that are there may be gone again when it fails, to come back with the retry.
  bool takes_back = false;
  // Lines of JSON of which "seconds" is left out of the comparison.
  std::vector<std::string> metrics = {};
  // Whether libraries of others (cairo, fontconfig) do most of the work: what they do without memory is theirs.
  bool foreign = false;
};

struct FaultCounts {
  int injected = 0;
  int refused = 0;    // exit code 4 and a message
  int tolerated = 0;  // the right files in spite of it
};

class FaultWalk {
 public:
  explicit FaultWalk(FaultScenario scenario) : scenario_(std::move(scenario)) {
    scenario_.lay(fresh());
    std::filesystem::copy(work(), folder_ / "template", std::filesystem::copy_options::recursive);
    before_ = contents();
    const CommandResult result = run(scenario_.command(work()), {}, 0);
    INFO(scenario_.name << ": " << result.err);
    REQUIRE(result.code == 0);
    after_ = contents();
  }

  // `numbers_of`: which of the calls fail, of so many.
  void walk(const Fault& fault, const std::function<std::vector<long>(long calls)>& numbers_of, FaultCounts& counts) {
    lay();
    run(scenario_.command(work()), fault, 0);
    long calls = 0;
    std::istringstream(read_file(folder_ / "report")) >> calls;
    for (const long number : numbers_of(calls)) one(fault, number, counts);
  }

 private:
  using Contents = std::map<std::string, std::string>;

  // Always the same path: files may name it.
  Path work() const { return folder_ / "work"; }
  Path fresh() const {
    std::filesystem::remove_all(work());
    std::filesystem::create_directory(work());
    return work();
  }
  void lay() const { std::filesystem::copy(folder_ / "template", fresh(), std::filesystem::copy_options::recursive); }

  CommandResult run(const std::vector<std::string>& arguments, const Fault& fault, long number) const {
    return Command(arguments, 0, "/dev/null",
                   [&] {
                     ::setenv("LD_PRELOAD", SAMBA_FAULT_SHIM, 1);
                     ::setenv("SAMBA_FAULT_CALL", fault.call.c_str(), 1);
                     ::setenv("SAMBA_FAULT_KIND", fault.kind.c_str(), 1);
                     ::setenv("SAMBA_FAULT_NUMBER", std::to_string(number).c_str(), 1);
                     ::setenv("SAMBA_FAULT_PATH", work().c_str(), 1);
                     ::setenv("SAMBA_FAULT_REPORT", (folder_ / "report").c_str(), 1);
                   })
        .finish();
  }

  Contents whole_files() const {
    Contents result;
    for (const std::string& name : scenario_.outputs) {
      if (std::filesystem::exists(work() / name)) result[name] = read_file(work() / name);
    }
    return result;
  }
  Contents contents() const {
    Contents result = whole_files();
    for (const std::string& name : scenario_.changing) {
      if (std::filesystem::exists(work() / name)) result[name] = read_file(work() / name);
    }
    for (const std::string& name : scenario_.metrics) {
      if (!std::filesystem::exists(work() / name)) continue;
      std::string& lines = result[name];
      for (nlohmann::json line : json_lines(read_file(work() / name))) {
        line.erase("seconds");
        lines += line.dump() + "\n";
      }
    }
    return result;
  }

  // A file is the old one or the new one; which of several files are new already is the command's affair. (Lines that
  // are appended may have stopped anywhere.)
  void check_whole() const {
    const Contents found = whole_files();
    for (const auto& [name, text] : found) {
      const auto old = before_.find(name), now = after_.find(name);
      const bool known = (old != before_.end() && old->second == text) || (now != after_.end() && now->second == text);
      INFO(name << " has " << text.size() << " bytes");
      CHECK(known);
    }
    for (const std::string& name : scenario_.outputs) {
      INFO(name);
      CHECK((found.contains(name) || !before_.contains(name) || scenario_.takes_back));
    }
  }

  void check_tidy() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(work())) {
      INFO(entry.path().string());
      CHECK(entry.path().filename().string().find(".tmp-") == std::string::npos);
    }
  }

  void one(const Fault& fault, long number, FaultCounts& counts) {
    lay();
    const CommandResult result = run(scenario_.command(work()), fault, number);
    INFO(scenario_.name << ": " << fault.call << " " << fault.kind << ", call " << number << ": exit " << result.code
                        << ": " << result.err);
    ++counts.injected;
    CHECK((result.code == 0 || (result.code == 4 && !fault.harmless)));
    // Where a mapped page is lost the process ends at once.
    if (fault.kind != "lost") check_tidy();
    if (result.code == 0) {
      ++counts.tolerated;
      CHECK(contents() == after_);
      return;
    }
    ++counts.refused;
    CHECK(result.err.starts_with("samba: "));
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    check_whole();
    const CommandResult again = run(scenario_.retry ? scenario_.retry(work()) : scenario_.command(work()), {}, 0);
    INFO("again: " << again.err);
    CHECK(again.code == 0);
    CHECK(contents() == after_);
  }

  FaultScenario scenario_;
  TemporaryFolder folder_;
  Contents before_, after_;
};

}  // namespace samba
