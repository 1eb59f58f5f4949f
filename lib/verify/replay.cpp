#include "samba/verify/replay.h"

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "samba/convert/initial_model.h"
#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/core/json_limits.h"
#include "samba/core/streams.h"
#include "samba/train/model_kind.h"
#include "samba/train/run_folder.h"
#include "samba/train/train_config.h"
#include "samba/verify/compare_files.h"
#include "samba/verify/training.h"

namespace samba::verify {
namespace {

namespace fs = std::filesystem;

// The record of a run: its step lines by step.
std::map<Index, json> read_record(const Path& run) {
  const Path path = run / "metrics.jsonl";
  if (!fs::exists(path)) refuse_value("--replay: there is no record of a run in " + run.string() + " (metrics.jsonl)");
  std::map<Index, json> record;
  for (const std::string& text : lines_of(read_file(path))) {
    json line = parse_bounded(text);
    if (!line.is_object() || !line.contains("loss_bits") || !line.contains("step")) continue;
    const auto step = line["step"].get<Index>();
    record[step] = std::move(line);
  }
  return record;
}

ReplayRange checked_range(ReplayRange range, const std::map<Index, json>& record, const Path& run) {
  const Index last = record.empty() ? 0 : record.rbegin()->first;
  if (range.last == 0) range.last = last;
  if (range.first >= 1 && range.first <= range.last && range.last <= last) return range;
  refuse_value("--steps must be a stretch within 1.." + std::to_string(last) + ", the steps that " + run.string() +
               " has, got " + std::to_string(range.first) + ".." + std::to_string(range.last));
}

Path checkpoint_of(const Path& run, Index step) {
  for (const char* extension : {".samba", ".mlp"}) {
    Path path = run / "checkpoints" / checkpoint_name(step, extension);
    if (fs::exists(path)) return path;
  }
  return {};
}

class Replay {
 public:
  Replay(Executor& executor, const Path& run, ReplayRange range, const std::function<void(Index)>& on_step)
      : executor_(executor), run_(run), record_(read_record(run)), on_step_(on_step) {
    report_.range = checked_range(range, record_, run);
  }

  ReplayReport take() {
    const json config = parse_json(read_file(run_ / "config.json"), (run_ / "config.json").string());
    const auto training = make_training(config_of_run(config, run_), run_, model_opener());
    const std::string field = samba::first_difference(training->resolved(), config);
    if (!field.empty()) refuse_value("--replay: " + field + " is not that of the run: its data changed since");
    begin(*training);
    while (training->completed_steps() < report_.range.last && report_.passed()) step(*training);
    report_.card = training->card();
    return std::move(report_);
  }

 private:
  void begin(Training& training) {
    const Path archive = checkpoint_before(run_, report_.range.first);
    if (archive.empty()) {
      report_.from = "the initial values";
      training.start(executor_);
      return;
    }
    report_.from = archive.string();
    training.resume(executor_, archive);
    const Index step = training.completed_steps();
    training.set_card(record_.contains(step) ? record_.at(step).value("card", "") : RunFolder::card_beside(archive));
  }

  void step(Training& training) {
    const Index number = training.completed_steps() + 1;
    const auto found = record_.find(number);
    const bool compared = found != record_.end() && number >= report_.range.first;
    const bool digest = compared && found->second.contains("parameters_sha256");
    const StepMetrics metrics = training.take_step(digest);
    if (on_step_) on_step_(number);
    if (number < report_.range.first) return;
    if (found == record_.end()) return part(number, "the record of the run lacks this step");
    ++report_.steps;
    const json now = to_json(metrics);
    for (const std::string& name : computed_fields(found->second)) {
      const json& recorded = found->second[name];
      ++report_.numbers;
      report_.parameter_digests += name == "parameters_sha256" ? 1 : 0;
      if (now.contains(name) && now[name] == recorded) continue;
      return part(number, name + ": the run has " + recorded.dump() + ", here it is " +
                              (now.contains(name) ? now[name].dump() : "absent") + where(training, number));
    }
    check_checkpoint(training, number);
  }

  void check_checkpoint(Training& training, Index number) {
    const Path archive = checkpoint_of(run_, number);
    if (archive.empty()) return;
    const Path mine = folder_ / archive.filename().string();
    training.save_to(mine);
    ++report_.checkpoints;
    if (read_file(mine) == read_file(archive)) return fs::remove(mine), void();
    part(number, "the checkpoint differs" + where(training, number));
  }

  // In which tensor, when the run has a checkpoint of this step.
  std::string where(Training& training, Index number) {
    const Path archive = checkpoint_of(run_, number);
    if (archive.empty()) return "";
    const Path mine = folder_ / ("again" + archive.extension().string());
    training.save_to(mine);
    const FileComparison comparison = compare_models(archive, mine);
    return comparison.equal() ? "" : "; against the checkpoint of this step: " + comparison.first;
  }

  void part(Index step, const std::string& difference) {
    report_.step = step;
    report_.difference = difference;
  }

  Executor& executor_;
  Path run_;
  std::map<Index, json> record_;
  const std::function<void(Index)>& on_step_;
  TemporaryFolder folder_;
  ReplayReport report_;
};

Index step_number(const std::string& text, const std::string& all) {
  Index value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) {
    refuse_value("--steps must be FIRST..LAST, FIRST.. or one step, got '" + all + "'");
  }
  return value;
}

}  // namespace

Path checkpoint_before(const Path& run, Index step) {
  for (Index number = step - 1; number > 0; --number) {
    Path path = checkpoint_of(run, number);
    if (!path.empty()) return path;
  }
  return {};
}

ReplayRange parse_range(const std::string& text) {
  const std::size_t dots = text.find("..");
  if (dots == std::string::npos) {
    const Index step = step_number(text, text);
    return {step, step};
  }
  ReplayRange range;
  range.first = step_number(text.substr(0, dots), text);
  if (dots + 2 < text.size()) range.last = step_number(text.substr(dots + 2), text);
  return range;
}

ReplayReport replay_run(Executor& executor, const Path& run, ReplayRange range,
                        const std::function<void(Index step)>& on_step) {
  return Replay(executor, run, range, on_step).take();
}

nlohmann::json replay_json(const ReplayReport& report) {
  json document = {{"equal", report.passed()},
                   {"first", report.range.first},
                   {"last", report.range.last},
                   {"from", report.from},
                   {"steps", report.steps},
                   {"numbers", report.numbers},
                   {"parameter_digests", report.parameter_digests},
                   {"checkpoints", report.checkpoints},
                   {"card", report.card}};
  if (!report.passed()) document["first_difference"] = {{"step", report.step}, {"detail", report.difference}};
  return document;
}

}  // namespace samba::verify
