// samba train: a model from text, or from rows.

#include <spdlog/spdlog.h>

#include <cstdio>

#include "commands.h"
#include "output.h"
#include "progress.h"
#include "samba/convert/folder_run.h"
#include "samba/core/error.h"
#include "samba/core/interrupt.h"
#include "samba/core/json_fields.h"
#include "samba/train/model_kind.h"
#include "samba/train/train_config.h"

namespace samba::apps {

namespace {

struct TrainOptions {
  std::string config;
  std::vector<std::string> data;
  std::string tokenizer;
  std::string out;
  std::string resume;
  bool force = false;
  std::int64_t steps = 0;
  std::vector<std::string> set;
  bool print_config = false;
};

// A configuration as the user wants it: the file (or the one of the run to resume) and the flags on top of it.
struct GivenConfig {
  nlohmann::json json;
  Path folder = ".";  // relative paths of the data are taken from here
};

// `run`: the folder of the run to resume, whose copy of the tokenizer is used.
GivenConfig read_config(const TrainOptions& options, const nlohmann::json* resumed, const Path& run = {}) {
  GivenConfig given;
  nlohmann::json& json = given.json;
  if (!options.config.empty()) {
    json = parse_json(read_file(options.config), options.config);
    if (json.is_object() && json.contains("format")) json = config_of_run(json);
    const Path folder = Path(options.config).parent_path();
    if (!folder.empty()) given.folder = folder;
  } else {
    json = config_of_run(*resumed);
    for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
      const nlohmann::json& data = json["data"];
      if (!data.contains("tokenizer") || data["tokenizer"].is_null() || !std::filesystem::exists(run / name)) continue;
      json["data"]["tokenizer"] = std::filesystem::absolute(run / name).lexically_normal().string();
      break;
    }
  }
  for (const std::string& assignment : options.set) set_field(json, assignment);
  if (options.steps != 0) {
    json["steps"] = options.steps;
    json.erase("epochs");
  }
  if (!options.data.empty()) {
    json["data"]["paths"] = nlohmann::json::array();
    for (const std::string& path : options.data) {
      json["data"]["paths"].push_back(std::filesystem::absolute(path).lexically_normal().string());
    }
  }
  if (!options.tokenizer.empty()) {
    json["data"]["tokenizer"] = std::filesystem::absolute(options.tokenizer).lexically_normal().string();
  }
  return given;
}

void check_flags(const TrainOptions& options) {
  if (options.config.empty() && options.resume.empty()) refuse_value("train needs --config FILE, or --resume DIR");
  if (!options.resume.empty() && !options.out.empty()) {
    refuse_value("--resume and --out exclude each other: a resumed run goes on in its folder");
  }
  if (!options.resume.empty() && options.force) {
    refuse_value("--resume and --force exclude each other: --force is for a new run");
  }
}

std::string number(double value, const char* pattern) {
  char text[48];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

// Events of a run to the screen and, with --json, to stdout. A closed pipe does not end the training.
class Reporter {
 public:
  Reporter(const CommonOptions& common, const Training& run, Index first)
      : common_(common),
        progress_(common.progress, "train", "steps", static_cast<std::uint64_t>(first),
                  static_cast<std::uint64_t>(run.steps())),
        unit_(run.unit()) {}

  TrainingEvents events() {
    TrainingEvents events;
    events.on_step = [this](const StepMetrics& metrics) {
      emit(to_json(metrics));
      std::string note = "loss " + number(static_cast<double>(metrics.loss), "%.4f");
      if (metrics.seconds > 0.0) {
        const double per_step = static_cast<double>(metrics.tokens) / static_cast<double>(metrics.step);
        note += "  " + number(per_step / metrics.seconds, "%.0f") + " " + unit_ + "/s";
      }
      progress_.update(static_cast<std::uint64_t>(metrics.step), note);
    };
    events.on_evaluation = [this](const EvaluationMetrics& metrics) {
      emit(to_json(metrics));
      const std::string score = metrics.accuracy ? number(100.0 * *metrics.accuracy, "%.1f") + " % of the classes right"
                                                 : number(metrics.bits_per_byte, "%.3f") + " bits per byte";
      progress_.say("step " + std::to_string(metrics.step) + ": held-back " + (metrics.accuracy ? "rows" : "text") +
                    ": loss " + number(metrics.eval_loss, "%.4f") + ", " + score);
    };
    events.on_sample = [this](Index step, const std::string& text) {
      emit({{"step", step}, {"sample", text}});
      progress_.say("step " + std::to_string(step) + ": sample: " + nlohmann::json(text).dump());
    };
    events.on_checkpoint = [this](Index step, const Path& archive) {
      emit({{"step", step}, {"checkpoint", archive.string()}});
      progress_.say("step " + std::to_string(step) + ": checkpoint " + archive.string());
    };
    events.interrupted = interrupt_requested;
    return events;
  }
  void finish() { progress_.finish(); }
  void say(const std::string& text) { progress_.say(text); }

  void emit(const nlohmann::ordered_json& line) {
    if (!common_.json || closed_) return;
    try {
      print(json_line(line));
    } catch (const OutputClosed&) {
      closed_ = true;
    }
  }

 private:
  const CommonOptions& common_;
  Progress progress_;
  std::string unit_;
  bool closed_ = false;
};

int train(const TrainOptions& options, const CommonOptions& common) {
  check_flags(options);
  if (options.print_config && options.resume.empty()) {
    const GivenConfig given = read_config(options, nullptr);
    print(resolved_config(given.json, given.folder).dump(2) + "\n");
    return 0;
  }
  std::unique_ptr<RunFolder> folder;
  nlohmann::json resumed;
  if (!options.resume.empty()) {
    const ResumedFolder place = run_folder_of(options.resume);
    if (!place.moved_to.empty()) {
      spdlog::warn("{} was converted; it is now in {}, and the run goes on in its place", options.resume,
                   place.moved_to.string());
    }
    folder = RunFolder::resume(place.path);
    resumed = folder->config();
  }
  const GivenConfig given = read_config(options, &resumed, folder == nullptr ? Path() : folder->folder());
  if (options.print_config) {
    print(resolved_config(given.json, given.folder).dump(2) + "\n");
    return 0;
  }
  const std::unique_ptr<Executor> executor = make_executor(common);  // outlives the run
  const std::unique_ptr<Training> training = make_training(given.json, given.folder);
  Training& run = *training;
  if (folder != nullptr) {
    const std::string difference = first_difference(run.resolved(), resumed);
    if (!difference.empty()) {
      const nlohmann::json::json_pointer place(difference);
      const nlohmann::json mine = run.resolved();
      refuse_value("cannot resume " + folder->folder().string() + " with another configuration: " + difference +
                   " is " + shown(mine.contains(place) ? mine.at(place) : nlohmann::json()) + ", the run has " +
                   shown(resumed.contains(place) ? resumed.at(place) : nlohmann::json()));
    }
  }
  const InterruptGuard guard;
  if (folder != nullptr) {
    run.resume(*executor, folder->resume_archive());
    folder->cut_metrics(run.completed_steps());
  } else {
    run.start(*executor);
    const std::string name = Path(options.config).stem().string();
    folder = RunFolder::create(options.out.empty() ? Path("runs") / name : Path(options.out), options.force);
  }
  folder->write_config(run.resolved());
  const Index first = run.completed_steps();
  Reporter reporter(common, run, first);
  reporter.say("training " + run.summary() + ", " + executor->name() + " (" + executor->instruction_set() + ", " +
               std::to_string(executor->threads()) + " threads), in " + folder->folder().string() +
               (first > 0 ? ", resumed at step " + std::to_string(first) : std::string()));
  const TrainingResult result = run.run(*folder, reporter.events());
  reporter.finish();
  reporter.emit({{"finished", !result.interrupted},
                 {"step", result.step},
                 {"loss", static_cast<double>(result.loss)},
                 {"checkpoint", result.checkpoint.string()}});
  if (result.interrupted) {
    spdlog::warn("interrupted after step {}; go on with: samba train --resume {}", result.step,
                 folder->folder().string());
    return kInterruptedExitCode;
  }
  if (!common.json) {
    try {
      print(result.checkpoint.string() + "\n");
    } catch (const OutputClosed&) {
      return 0;
    }
  }
  return 0;
}

}  // namespace

void add_train_command(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "train a model, or go on with a run");
  command->add_option("--config", options->config, "the configuration (JSON; configs/schema.json describes it)");
  command->add_option("--data", options->data,
                      "text files and folders (of an MLP: CSV files), instead of the config's");
  command->add_option(
      "--tokenizer", options->tokenizer,
      "tokenizer.json, tokenizer.model or a folder, instead of the config's; without one tokens are bytes");
  command->add_option("--out", options->out, "folder of the run (default: runs/NAME, NAME of the config)");
  command->add_option("--resume", options->resume, "go on in this run folder, or from one of its checkpoints");
  command->add_flag("--force", options->force, "move a run that is in the way to DIR.old-N");
  command->add_option("--steps", options->steps, "steps in all, instead of the config's")->check(CLI::PositiveNumber);
  command->add_option("--set", options->set, "a field of the config: optimizer.lr=0.001 (repeatable)")
      ->allow_extra_args(false);
  command->add_flag("--print-config", options->print_config, "print the resolved configuration and stop");
  line.on(command, "samba train --config configs/quickstart.json --out runs/first",
          [options, &line] { return train(*options, line.common); });
}

}  // namespace samba::apps
