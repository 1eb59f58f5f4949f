// What a run of the suites tells: tables, the account of what was covered, JSON.
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "samba/verify/case_json.h"
#include "samba/verify/suites.h"

namespace samba::verify {
namespace {

struct Counts {
  std::size_t equal = 0, different = 0, not_applicable = 0;
  double seconds = 0.0;

  std::size_t total() const { return equal + different + not_applicable; }
  void add(Verdict verdict) {
    equal += verdict == Verdict::equal ? 1 : 0;
    different += verdict == Verdict::different ? 1 : 0;
    not_applicable += verdict == Verdict::not_applicable ? 1 : 0;
  }
};

// The suite of a result: the folder its file is in.
std::size_t suite_of(const SuitesReport& report, const CaseResult& result) {
  for (std::size_t i = 0; i < report.suites.size(); ++i) {
    const auto folder = report.suites[i].folder.string() + "/";
    if (result.file.string().starts_with(folder)) return i;
  }
  return 0;
}

// A case is different when it was anywhere, equal when it ran somewhere and was equal everywhere.
struct CaseAnswer {
  std::size_t suite = 0;
  Verdict verdict = Verdict::not_applicable;
  std::size_t runs = 0;
};

std::map<std::string, CaseAnswer> answers_of(const SuitesReport& report) {
  std::map<std::string, CaseAnswer> answers;
  for (const ConfigurationRun& run : report.runs) {
    for (const CaseResult& result : run.report.results) {
      const std::size_t suite = suite_of(report, result);
      CaseAnswer& answer = answers[report.suites[suite].name + " " + result.id];
      answer.suite = suite;
      ++answer.runs;
      if (result.verdict == Verdict::different) answer.verdict = Verdict::different;
      if (result.verdict == Verdict::equal && answer.verdict == Verdict::not_applicable)
        answer.verdict = Verdict::equal;
    }
  }
  return answers;
}

Counts totals(const SuitesReport& report) {
  Counts counts;
  for (const auto& [id, answer] : answers_of(report)) counts.add(answer.verdict);
  return counts;
}

std::string cell(const std::string& text, int width) {
  char line[256];
  std::snprintf(line, sizeof line, width < 0 ? "%-*s" : "%*s", width < 0 ? -width : width, text.c_str());
  return line;
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", seconds);
  return text;
}

std::string row(const std::string& name, int width, const std::vector<std::string>& cells) {
  constexpr int kWidths[] = {7, 8, 10, 15, 9, 10};
  std::string line = cell(name, -width);
  for (std::size_t i = 0; i < cells.size(); ++i) line += cell(cells[i], kWidths[i]);
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line + "\n";
}

std::string suite_rows(const SuitesReport& report, int width) {
  std::vector<Counts> counts(report.suites.size());
  std::vector<std::size_t> runs(report.suites.size());
  for (const auto& [id, answer] : answers_of(report)) {
    counts[answer.suite].add(answer.verdict);
    runs[answer.suite] += answer.runs;
  }
  for (const ConfigurationRun& run : report.runs) {
    for (const CaseResult& result : run.report.results) counts[suite_of(report, result)].seconds += result.seconds;
  }
  std::string table = row("suite", width, {"cases", "equal", "different", "not applicable", "runs", "time"});
  for (std::size_t i = 0; i < report.suites.size(); ++i) {
    table += row(
        report.suites[i].name, width,
        {std::to_string(report.suite_cases[i]), std::to_string(counts[i].equal), std::to_string(counts[i].different),
         std::to_string(counts[i].not_applicable), std::to_string(runs[i]), seconds_text(counts[i].seconds)});
  }
  return table;
}

std::string configuration_rows(const SuitesReport& report, int width) {
  std::string table = row("on", width, {"runs", "equal", "different", "not applicable", "not run", "time"});
  for (const ConfigurationRun& run : report.runs) {
    table += row(run.configuration.name(), width,
                 {std::to_string(run.report.results.size()), std::to_string(run.report.count(Verdict::equal)),
                  std::to_string(run.report.count(Verdict::different)),
                  std::to_string(run.report.count(Verdict::not_applicable)), std::to_string(run.left_out),
                  seconds_text(run.seconds)});
  }
  return table;
}

// Device class -> how many of the published digests that were computed here, equal everywhere, it has a record of.
std::map<std::string, std::size_t> agreeing_records(const SuitesReport& report, std::size_t& digests) {
  const auto answers = answers_of(report);
  std::map<std::string, std::map<std::string, std::string>> columns;
  for (const ConfigurationRun& run : report.runs) {
    for (const CaseResult& result : run.report.results) {
      if (result.records.empty()) continue;
      const std::string id = report.suites[suite_of(report, result)].name + " " + result.id;
      if (answers.at(id).verdict == Verdict::equal) columns[id] = result.records;
    }
  }
  std::map<std::string, std::size_t> counts;
  for (const auto& [id, records] : columns) {
    for (const auto& [device_class, record] : records) ++counts[device_class];
  }
  digests = columns.size();
  return counts;
}

std::string class_text(const std::string& name) {
  const std::map<std::string, std::string> kNames = {
      {"apple", "Apple"}, {"nvidia", "NVIDIA"}, {"amd", "AMD"}, {"ptx", "NVIDIA from PTX"}, {"cpu", "CPU"}};
  const auto found = kNames.find(name);
  return found == kNames.end() ? name : found->second;
}

// What no configuration ran, and what was not there to run on.
std::string account(const SuitesReport& report) {
  std::string text;
  std::size_t digests = 0;
  const auto records = agreeing_records(report, digests);
  if (digests > 0) {
    text += "published digests reproduced here: " + std::to_string(digests) + "; records of other machines that agree:";
    for (const auto& [device_class, count] : records) {
      text += " " + class_text(device_class) + " " + std::to_string(count) + ",";
    }
    text.back() = '\n';
  }
  std::map<std::string, std::size_t> reasons;
  std::size_t all = 0;
  for (const std::size_t count : report.suite_cases) all += count;
  for (const ConfigurationRun& run : report.runs) {
    for (const CaseResult& result : run.report.results) {
      if (result.verdict == Verdict::not_applicable) ++reasons[result.reason];
    }
  }
  for (const auto& [reason, count] : reasons) {
    text += "not applicable (" + std::to_string(count) + " runs): " + reason + "\n";
  }
  const std::size_t ran = answers_of(report).size();
  if (ran < all) text += "not run anywhere, for time: " + std::to_string(all - ran) + " cases\n";
  for (const ConfigurationRun& run : report.runs) {
    if (run.left_out == 0) continue;
    text += "not run on " + run.configuration.name() + ", for time: " + std::to_string(run.left_out) + " cases (" +
            std::string(depth_text(run.configuration.depth)) + ")\n";
  }
  for (const std::string& absent : report.absent) text += "not covered: " + absent + "\n";
  return text;
}

nlohmann::json result_json(const CaseResult& result) {
  nlohmann::json entry = case_json(result);
  if (!result.records.empty()) entry["records"] = result.records;
  return entry;
}

}  // namespace

std::string suites_table(const SuitesReport& report) {
  int width = 20;
  for (const ConfigurationRun& run : report.runs) {
    width = std::max(width, static_cast<int>(run.configuration.name().size()) + 1);
  }
  for (const Suite& suite : report.suites) width = std::max(width, static_cast<int>(suite.name.size()) + 1);
  return suite_rows(report, width) + "\n" + configuration_rows(report, width) + "\n" + account(report);
}

std::string closing_line(const SuitesReport& report) {
  const Counts counts = totals(report);
  return "cases: " + std::to_string(counts.equal) + " equal, " + std::to_string(counts.different) + " different, " +
         std::to_string(counts.not_applicable) + " not applicable";
}

nlohmann::json suites_json(const SuitesReport& report) {
  const Counts counts = totals(report);
  std::size_t digests = 0;
  const auto records = agreeing_records(report, digests);
  nlohmann::json document = {{"equal", counts.equal},
                             {"different", counts.different},
                             {"not_applicable", counts.not_applicable},
                             {"seconds", report.seconds},
                             {"published_digests", {{"reproduced", digests}, {"records_that_agree", records}}},
                             {"not_covered", report.absent}};
  for (std::size_t i = 0; i < report.suites.size(); ++i) {
    document["suites"].push_back({{"name", report.suites[i].name}, {"cases", report.suite_cases[i]}});
  }
  for (const ConfigurationRun& run : report.runs) {
    nlohmann::json cases = nlohmann::json::array();
    for (const CaseResult& result : run.report.results) cases.push_back(result_json(result));
    document["configurations"].push_back({{"device", run.configuration.device},
                                          {"instruction_set", run.configuration.instruction_set},
                                          {"threads", run.configuration.threads},
                                          {"covers", depth_text(run.configuration.depth)},
                                          {"not_run", run.left_out},
                                          {"seconds", run.seconds},
                                          {"cases", std::move(cases)}});
  }
  return document;
}

}  // namespace samba::verify
