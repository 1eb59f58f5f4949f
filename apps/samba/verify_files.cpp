#include "verify_files.h"

#include "output.h"
#include "progress.h"
#include "samba/core/error.h"
#include "samba/verify/compare_files.h"
#include "samba/verify/replay.h"
#include "verify_suites.h"

namespace samba::apps {

int verify_replay(const std::string& run, const std::string& steps, const CommonOptions& common) {
  const verify::ReplayRange range = steps.empty() ? verify::ReplayRange{} : verify::parse_range(steps);
  const std::unique_ptr<Executor> executor = make_executor(common);
  std::unique_ptr<Progress> progress;
  const verify::ReplayReport report = verify::replay_run(*executor, run, range, [&](Index step) {
    if (!progress) progress = std::make_unique<Progress>(common.progress, "replay", "steps", step, 0);
    progress->update(static_cast<std::uint64_t>(step));
  });
  if (progress) progress->finish();
  if (common.json) {
    nlohmann::json document = origin_json();
    document.update({{"run", run}, {"device", executor->name()}, {"instruction_set", executor->instruction_set()}});
    document["threads"] = executor->threads();
    document.update(verify::replay_json(report));
    print(document.dump() + "\n");
    return report.passed() ? 0 : 1;
  }
  print("replay of " + run + ", steps " + std::to_string(report.range.first) + " to " +
        std::to_string(report.range.last) + ", from " + report.from + ", on " + executor->name() + " (" +
        executor->instruction_set() + ", " + std::to_string(executor->threads()) + " threads)\n");
  print("compared: " + std::to_string(report.steps) + " steps, " + std::to_string(report.numbers) + " numbers, " +
        std::to_string(report.parameter_digests) + " digests of all parameters, " + std::to_string(report.checkpoints) +
        " whole checkpoints\n");
  if (report.passed()) {
    print("equal; identity card " + report.card + "\n");
    return 0;
  }
  print("different: they part at step " + std::to_string(report.step) + ": " + report.difference + "\n");
  return 1;
}

int verify_compare(const std::vector<std::string>& paths, const CommonOptions& common) {
  const verify::FileComparison comparison = verify::compare_paths(paths.at(0), paths.at(1));
  if (common.json) {
    nlohmann::json document = {{"a", paths[0]}, {"b", paths[1]}};
    document.update(verify::comparison_json(comparison));
    print(document.dump() + "\n");
    return comparison.equal() ? 0 : 1;
  }
  std::string text = "two " + comparison.what + ": a = " + paths[0] + ", b = " + paths[1] + "\n";
  for (const std::string& line : comparison.lines) text += "  " + line + "\n";
  text += comparison.equal() ? "equal (" + std::to_string(comparison.compared) + " values and tensors compared)\n"
                             : "different: they part at " + comparison.first + "\n";
  print(text);
  return comparison.equal() ? 0 : 1;
}

}  // namespace samba::apps
