#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "samba/verify/case_json.h"
#include "samba/verify/verify.h"

namespace samba::verify {
namespace {

struct Counts {
  std::size_t equal = 0, different = 0, not_applicable = 0;
  double seconds = 0.0;

  void add(const CaseResult& result) {
    equal += result.verdict == Verdict::equal ? 1 : 0;
    different += result.verdict == Verdict::different ? 1 : 0;
    not_applicable += result.verdict == Verdict::not_applicable ? 1 : 0;
    seconds += result.seconds;
  }
};

std::string row(const std::string& group, const std::string& equal, const std::string& different,
                const std::string& not_applicable, const std::string& seconds, int width) {
  char line[256];
  std::snprintf(line, sizeof(line), "%-*s %8s %10s %15s %9s\n", width, group.c_str(), equal.c_str(), different.c_str(),
                not_applicable.c_str(), seconds.c_str());
  return line;
}

std::string group_of(const CaseResult& result) {
  const std::string folder = result.id.substr(0, result.id.find('/'));
  return folder + " / " + result.kind;
}

}  // namespace

nlohmann::json difference_json(const Difference& difference) {
  nlohmann::json object = {{"name", difference.name}, {"detail", difference.detail}};
  if (!difference.hint.empty()) object["hint"] = difference.hint;
  if (!difference.index) return object;
  object["index"] = *difference.index;
  object["got_bits"] = difference.got_bits;
  object["want_bits"] = difference.want_bits;
  object["ulp"] = difference.ulp;
  object["different"] = difference.different;
  object["of"] = difference.of;
  return object;
}

std::string_view verdict_word(Verdict verdict) {
  switch (verdict) {
    case Verdict::equal:
      return "equal";
    case Verdict::different:
      return "different";
    case Verdict::not_applicable:
      break;
  }
  return "not applicable";
}

std::string closing_line(const VerifyReport& report) {
  return "cases: " + std::to_string(report.count(Verdict::equal)) + " equal, " +
         std::to_string(report.count(Verdict::different)) + " different, " +
         std::to_string(report.count(Verdict::not_applicable)) + " not applicable";
}

std::string result_line(const CaseResult& result) {
  std::string line = std::string(verdict_word(result.verdict)) + "  " + result.id;
  if (result.verdict == Verdict::not_applicable) line += ": " + result.reason;
  if (result.first) {
    line += ": " + result.first->name + " " + result.first->detail;
    if (!result.first->hint.empty()) line += "; hint: " + result.first->hint;
    if (result.stage) {
      line += "; earliest difference from the reference executor: " + result.stage->name + " " + result.stage->detail;
      if (!result.stage->hint.empty()) line += "; hint: " + result.stage->hint;
    }
    if (result.differences > 1) line += " (and " + std::to_string(result.differences - 1) + " more results)";
  }
  return line;
}

std::string summary_table(const VerifyReport& report) {
  std::map<std::string, Counts> groups;
  std::map<std::string, std::size_t> reasons;
  int width = 5;
  for (const CaseResult& result : report.results) {
    groups[group_of(result)].add(result);
    if (result.verdict == Verdict::not_applicable) ++reasons[result.reason];
  }
  for (const auto& [group, counts] : groups) width = std::max(width, static_cast<int>(group.size()));
  std::string table = row("cases", "equal", "different", "not applicable", "seconds", width);
  for (const auto& [group, counts] : groups) {
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%.2f", counts.seconds);
    table += row(group, std::to_string(counts.equal), std::to_string(counts.different),
                 std::to_string(counts.not_applicable), seconds, width);
  }
  for (const auto& [reason, count] : reasons) {
    table += "not applicable (" + std::to_string(count) + "): " + reason + "\n";
  }
  return table;
}

nlohmann::json case_json(const CaseResult& result) {
  nlohmann::json entry = {{"id", result.id},
                          {"kind", result.kind},
                          {"verdict", verdict_word(result.verdict)},
                          {"compared", result.compared},
                          {"seconds", result.seconds}};
  if (!result.digest.empty()) entry["digest"] = result.digest;
  if (result.verdict == Verdict::not_applicable) entry["reason"] = result.reason;
  if (result.first) entry["first_difference"] = difference_json(*result.first);
  if (result.stage) entry["earliest_stage"] = difference_json(*result.stage);
  return entry;
}

nlohmann::json report_json(const VerifyReport& report, const Executor& executor) {
  nlohmann::json cases = nlohmann::json::array();
  for (const CaseResult& result : report.results) cases.push_back(case_json(result));
  return {{"device", executor.name()},
          {"instruction_set", executor.instruction_set()},
          {"threads", executor.threads()},
          {"equal", report.count(Verdict::equal)},
          {"different", report.count(Verdict::different)},
          {"not_applicable", report.count(Verdict::not_applicable)},
          {"cases", std::move(cases)}};
}

}  // namespace samba::verify
