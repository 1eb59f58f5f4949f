#include "samba/bench/bench_case.h"

#include <algorithm>

namespace samba::bench {

double Row::ratio() const { return less_is_better ? limit / achieved : achieved / limit; }

double Row::against_peer() const { return less_is_better ? peer / achieved : achieved / peer; }

std::string thread_row(const std::string& base, int threads) { return base + "/" + std::to_string(threads) + "t"; }

std::vector<std::string> thread_rows(const std::string& base, const std::vector<int>& threads) {
  std::vector<std::string> names;
  for (const int count : threads) names.push_back(thread_row(base, count));
  if (threads.size() > 1) names.push_back("speedup/" + base);
  return names;
}

std::vector<Row> measure_on_threads(const Context& context, const Wanted& wanted, const ThreadMeasurement& m) {
  const std::string speedup = "speedup/" + m.base;
  const bool compares = context.threads.size() > 1 && wanted(speedup);
  std::vector<int> counts;
  std::vector<std::unique_ptr<Executor>> executors;
  std::vector<std::unique_ptr<Subject>> subjects;
  std::vector<Side> sides;
  for (const int threads : context.threads) {
    const bool compared = compares && (threads == context.threads.front() || threads == context.threads.back());
    if (!compared && !wanted(thread_row(m.base, threads))) continue;
    counts.push_back(threads);
    executors.push_back(context.executor(threads));
    subjects.push_back(m.make(*executors.back()));
    Subject* subject = subjects.back().get();
    sides.push_back({.work = [subject] { subject->run(); }, .prepare = [subject] { subject->prepare(); }});
  }
  if (sides.empty()) return {};
  const std::vector<Timing> timings = measure(sides, context.measuring);
  std::vector<Row> rows;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::string name = thread_row(m.base, counts[i]);
    if (!wanted(name)) continue;
    const MachineLimits& limits = context.machine.at(counts[i]);
    Row row{.name = name, .threads = counts[i], .unit = m.unit, .limit_name = limiting(m.cost, limits)};
    row.achieved = m.units / timings[i].wall_min;
    row.limit = m.units / least_seconds(m.cost, limits);
    row.cost = m.cost;
    row.timing = timings[i];
    rows.push_back(row);
  }
  if (compares) {
    Row row{.name = speedup, .threads = counts.back(), .unit = "x", .limit_name = "number of threads"};
    row.achieved = timings.front().wall_min / timings.back().wall_min;
    row.limit = static_cast<double>(counts.back()) / counts.front();
    row.timing = timings.back();
    rows.push_back(row);
  }
  return rows;
}

}  // namespace samba::bench
