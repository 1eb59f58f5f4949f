#include "samba/bench/bench.h"

#include <algorithm>
#include <cstdlib>

#include "samba/backends/cpu/openblas.h"
#include "samba/core/error.h"
#include "samba/core/names.h"

namespace samba::bench {

namespace {

constexpr double kQuickSeconds = 45.0;  // after this no case is begun; the last one and the start have their share
constexpr double kQuickCaseSeconds = 2.5;

bool wanted_by(const BenchOptions& options, const std::string& name) {
  return options.rows.empty() || std::any_of(options.rows.begin(), options.rows.end(),
                                             [&](const std::string& part) { return selects(part, name); });
}

}  // namespace

bool selects(const std::string& part, const std::string& name) {
  const std::string inside = "/" + name + "/";
  return !part.empty() && inside.find("/" + part + "/") != std::string::npos;
}

std::vector<Case> selected_cases(const std::vector<Case>& cases, const BenchOptions& options) {
  for (const std::string& part : options.rows) {
    std::vector<std::string> known;
    bool found = false;
    for (const Case& c : cases) {
      for (const std::string& name : c.rows) {
        found = found || selects(part, name);
        known.push_back(name);
        known.push_back(name.substr(0, name.rfind('/')));
        known.push_back(name.substr(0, name.find('/')));
      }
    }
    if (found) continue;
    const std::string nearest = nearest_name(part, known);
    refuse_value("no row is named '" + part + "'" +
                 (nearest.empty() ? "; samba bench --list shows the rows" : "; did you mean " + nearest + "?"));
  }
  std::vector<Case> selected;
  for (const Case& c : cases) {
    // A row that is asked for by name is measured in a quick run too.
    if (options.quick && options.rows.empty() && !c.quick) continue;
    const bool any =
        std::any_of(c.rows.begin(), c.rows.end(), [&](const std::string& name) { return wanted_by(options, name); });
    if (any) selected.push_back(c);
  }
  return selected;
}

std::vector<std::string> selected_rows(const std::vector<Case>& cases, const BenchOptions& options) {
  std::vector<std::string> names;
  for (const Case& c : selected_cases(cases, options)) {
    for (const std::string& name : c.rows) {
      if (wanted_by(options, name)) names.push_back(name);
    }
  }
  return names;
}

BenchReport run_bench(Context context, const std::vector<Case>& cases, const BenchOptions& options,
                      const BenchEvents& events) {
  const double start = wall_seconds();
  const std::vector<Case> selected = selected_cases(cases, options);
  context.machine = describe_machine();
  // Some machines pin an old kernel of OpenBLAS by these variables; it reads them when it is loaded.
  unsetenv("OPENBLAS_CORETYPE");
  unsetenv("OPENBLAS_L2_SIZE");
  context.blas = cpu::OpenBlas::find();
  if (context.blas) context.machine.blas = context.blas->description();
  {
    const auto executor = context.executor(1);
    if (auto* device = dynamic_cast<DeviceBench*>(executor.get()); device != nullptr) {
      // The device has its own threads: samba's number of them is that of one row.
      measure_device_limits(context.machine, context.threads, *device);
    } else {
      measure_limits(context.machine, context.threads, executor->instruction_set());
    }
  }
  if (events.on_machine) events.on_machine(context.machine);
  if (options.quick) context.measuring.most_seconds = kQuickCaseSeconds;

  BenchReport report;
  const Wanted wanted = [&](const std::string& name) { return wanted_by(options, name); };
  const auto skip = [&](const Case& c, const std::string& reason) {
    for (const std::string& name : c.rows) {
      if (wanted(name)) report.skipped.push_back({name, reason});
    }
  };
  for (std::size_t i = 0; i < selected.size(); ++i) {
    const Case& c = selected[i];
    const bool stopped = events.interrupted && events.interrupted();
    const bool late = options.quick && wall_seconds() - start > kQuickSeconds;
    if (stopped || late) {
      skip(c, stopped ? "interrupted" : "the minute of --quick is over");
      continue;
    }
    if (events.progress) events.progress(i, selected.size(), c.rows.front());
    try {
      for (const Row& row : c.run(context, wanted)) {
        if (events.on_row) events.on_row(row);
        report.rows.push_back(row);
      }
    } catch (const Error& error) {
      // What this device or numeric mode does not offer is no reason to leave out the rest.
      if (error.kind() != ErrorKind::unsupported && error.kind() != ErrorKind::resource) throw;
      skip(c, error.what());
    }
  }
  report.machine = context.machine;
  return report;
}

}  // namespace samba::bench
