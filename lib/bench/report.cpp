#include "samba/bench/report.h"

#include <cstdio>
#include <nlohmann/json.hpp>

namespace samba::bench {

namespace {

std::string format(const char* pattern, auto... values) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

// Four digits that count, whatever the size.
std::string number(double value) {
  return format(value >= 1000.0 ? "%.0f" : value >= 100.0 ? "%.1f" : value >= 10.0 ? "%.2f" : "%.3f", value);
}

nlohmann::ordered_json row_json(const Row& row) {
  nlohmann::ordered_json json{{"name", row.name},
                              {"threads", row.threads},
                              {"achieved", row.achieved},
                              {"limit", row.limit},
                              {"ratio", row.ratio()},
                              {"unit", row.unit},
                              {"less_is_better", row.less_is_better},
                              {"limit_name", row.limit_name}};
  if (!row.peer_name.empty()) {
    json["peer"] = {{"name", row.peer_name}, {"achieved", row.peer}, {"ratio", row.against_peer()}};
  }
  if (row.cost.flops > 0.0) {
    json["flops"] = row.cost.flops;
    json["bytes"] = row.cost.bytes;
  }
  if (row.timing.repetitions > 0) {
    json["seconds"] = {{"wall_min", row.timing.wall_min},
                       {"wall_median", row.timing.wall_median},
                       {"cpu_min", row.timing.cpu_min},
                       {"cpu_median", row.timing.cpu_median},
                       {"repetitions", row.timing.repetitions}};
  }
  return json;
}

}  // namespace

std::string machine_text(const Machine& machine) {
  std::string text = machine.processor + ", " + std::to_string(machine.cores) + " core(s), instruction set " +
                     machine.instruction_set + "; " + machine.time + " UTC\n" + machine.system + ", " +
                     machine.compiler + (machine.blas.empty() ? ", no OpenBLAS" : ", " + machine.blas) + "\n";
  text += "FMA peak on one thread, GFLOP/s:";
  for (const auto& [set, flops] : machine.flops_by_instruction_set) text += " " + set + " " + number(flops / 1e9);
  text += "\n";
  for (const auto& [threads, limits] : machine.limits) {
    text += format("%d thread(s): FMA peak %s GFLOP/s, memory read %s GB/s (%s in pages of 2 MiB), cache read %s\n",
                   threads, number(limits.flops / 1e9).c_str(), number(limits.read_bytes / 1e9).c_str(),
                   number(limits.read_bytes_huge_pages / 1e9).c_str(), number(limits.read_bytes_cached / 1e9).c_str());
  }
  return text;
}

std::string table_header() {
  return format("%-36s %10s %10s %6s  %-9s %9s %9s  %s\n", "row", "achieved", "limit", "ratio", "unit", "median ms",
                "CPU ms", "beside");
}

std::string table_row(const Row& row) {
  std::string line = format("%-36s %10s %10s %6.2f  %-9s %9s %9s", row.name.c_str(), number(row.achieved).c_str(),
                            number(row.limit).c_str(), row.ratio(), row.unit.c_str(),
                            number(1e3 * row.timing.wall_median).c_str(), number(1e3 * row.timing.cpu_min).c_str());
  if (!row.peer_name.empty()) {
    line += format("  %s %s: %.2fx", row.peer_name.c_str(), number(row.peer).c_str(), row.against_peer());
  }
  return line + "\n";
}

std::string skipped_text(const std::vector<SkippedRow>& skipped) {
  std::string text;
  for (const SkippedRow& row : skipped) text += "not measured: " + row.name + " (" + row.reason + ")\n";
  return text;
}

nlohmann::ordered_json report_json(const BenchReport& report) {
  nlohmann::ordered_json json{{"machine", machine_json(report.machine)},
                              {"rows", nlohmann::json::array()},
                              {"skipped", nlohmann::json::array()}};
  for (const Row& row : report.rows) json["rows"].push_back(row_json(row));
  for (const SkippedRow& row : report.skipped) json["skipped"].push_back({{"name", row.name}, {"reason", row.reason}});
  return json;
}

}  // namespace samba::bench
