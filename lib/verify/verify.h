// Runs recorded cases on an executor and compares every result with the recorded one, bit for bit.
//
//   VerifyReport report = verify_cases(*executor, paths, {}, [](const CaseResult& result) { ... });
//   std::cout << closing_line(report);   // cases: 12 equal, 0 different, 1 not applicable
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "samba/kernels/executor.h"
#include "samba/verify/case_file.h"
#include "samba/verify/compare.h"

namespace samba::verify {

struct VerifyOptions {
  // Runs only the cases whose id holds this text; empty: all.
  std::string id_part;
  // Leaves out those for which it is false; null: none. Used by tests to divide the work.
  std::function<bool(const std::string& id, const std::string& kind)> accept;
  // Of the kind "tutorial": at most so many training steps; then the results that need all of them are not compared.
  std::optional<std::size_t> most_tutorial_steps;
  // Gives every result a digest over all values that were computed for it.
  bool digests = false;
  // Makes the reference executor. Of a case that keeps digests alone the earliest stage that differs from it is told;
  // null: it is not looked for.
  std::function<std::unique_ptr<Executor>()> reference;
  // Told before each case how many are done and how many there are.
  std::function<void(std::size_t done, std::size_t total, const std::string& id)> progress;
};

enum class Verdict { equal, different, not_applicable };

std::string_view verdict_word(Verdict verdict);  // "equal", "different", "not applicable"

struct CaseResult {
  std::string id;
  std::string kind;
  std::filesystem::path file;
  Verdict verdict = Verdict::equal;
  std::string reason;               // why it is not applicable
  std::optional<Difference> first;  // the first difference, in the order of computation
  std::optional<Difference> stage;  // the earliest stage that differs from the reference executor's
  std::size_t differences = 0;      // results that differ
  std::size_t compared = 0;         // results compared
  double seconds = 0.0;
  std::string digest;  // SHA-256 over what was computed, when it was asked for and the case ran
  // Of a published column: device class -> the newest record of that class that gave the digest.
  std::map<std::string, std::string> records;
};

struct VerifyReport {
  std::vector<CaseResult> results;

  std::size_t count(Verdict verdict) const;
  bool passed() const { return count(Verdict::different) == 0; }
};

// The cases of files and folders that `options` lets through. Every file is checked (the errors of case_file.h).
std::vector<Case> load_cases(std::span<const std::filesystem::path> paths, const VerifyOptions& options = {});

// Runs each case once, on whichever of the executors is free: one executor, one thread of its own. Results come in the
// order of the cases; `done` is called by one thread at a time.
VerifyReport run_cases(std::span<Executor* const> executors, std::span<const Case> cases,
                       const VerifyOptions& options = {}, const std::function<void(const CaseResult&)>& done = {});

// Both for one executor. Every file is loaded and checked before the first case runs (the errors are those of
// case_file.h); `done` (may be null) is called after each case. A case without anything compared is different.
VerifyReport verify_cases(Executor& executor, std::span<const std::filesystem::path> paths,
                          const VerifyOptions& options = {}, const std::function<void(const CaseResult&)>& done = {});

// "cases: N equal, N different, N not applicable"
std::string closing_line(const VerifyReport& report);
// A line for a case: verdict, id, and the first difference or the reason.
std::string result_line(const CaseResult& result);
// A table of counts by folder and kind, one line each, and under it the distinct reasons of the cases not applicable.
std::string summary_table(const VerifyReport& report);
nlohmann::json difference_json(const Difference& difference);
nlohmann::json report_json(const VerifyReport& report, const Executor& executor);

}  // namespace samba::verify
