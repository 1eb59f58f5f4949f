// samba train: a model from text, or from rows.

#include <sched.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>

#include "commands.h"
#include "output.h"
#include "samba/convert/folder_run.h"
#include "samba/convert/initial_model.h"
#include "samba/core/error.h"
#include "samba/core/interrupt.h"
#include "samba/core/json_fields.h"
#include "samba/formats/token_shards.h"
#include "samba/train/model_kind.h"
#include "samba/train/mpi_communicator.h"
#include "samba/train/train_config.h"
#include "train_view.h"

namespace samba::apps {

namespace {

struct TrainOptions {
  std::string config;
  std::vector<std::string> data;
  std::string tokenizer;
  std::string out;
  std::string resume;
  std::string init_from;
  bool force = false;
  std::int64_t steps = 0;
  std::vector<std::string> set;
  bool print_config = false;
  bool eval_only = false;
  std::optional<std::string> tensorboard;  // "": in the run's folder
};

// A configuration as the user wants it: the file (or the one of the run to resume) and the flags on top of it.
struct GivenConfig {
  nlohmann::json json;
  Path folder = ".";  // relative paths of the data are taken from here
};

// Token shards in place of the text that a configuration names: they hold out documents of their own, not the tail of
// the text. Whoever sets the field beside them is told that it does not go.
void give_up_held_back_text(nlohmann::json& data, const TrainOptions& options) {
  const bool shards = std::all_of(options.data.begin(), options.data.end(),
                                  [](const std::string& path) { return is_token_shards(path); });
  const bool set = std::any_of(options.set.begin(), options.set.end(), [](const std::string& assignment) {
    return assignment.find("evaluation_bytes") != std::string::npos;
  });
  if (!shards || set || !data.contains("evaluation_bytes") || data["evaluation_bytes"] == 0) return;
  spdlog::info("the token shards hold out their own documents: data.evaluation_bytes of the configuration is 0");
  data["evaluation_bytes"] = 0;
}

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
    json = config_of_run(*resumed, run);
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
    give_up_held_back_text(json["data"], options);
  }
  if (!options.init_from.empty()) {
    json["train"]["init_from"] = std::filesystem::absolute(options.init_from).lexically_normal().string();
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
  if (options.eval_only && (!options.out.empty() || options.force || options.tensorboard)) {
    refuse_value("--eval-only writes nothing: it excludes --out, --force and --tensorboard");
  }
  if (!options.resume.empty() && !options.init_from.empty()) {
    refuse_value("--resume and --init-from exclude each other: a resumed run has its own checkpoint");
  }
  if (!options.resume.empty() && options.force) {
    refuse_value("--resume and --force exclude each other: --force is for a new run");
  }
}

// Refuses to go on with a run whose configuration is another one.
void check_resumed(const Training& run, const nlohmann::json& resumed, const Path& folder) {
  const std::string difference = first_difference(run.resolved(), resumed);
  if (difference.empty()) return;
  const nlohmann::json::json_pointer place(difference);
  const nlohmann::json mine = run.resolved();
  refuse_value("cannot resume " + folder.string() + " with another configuration: " + difference + " is " +
               shown(mine.contains(place) ? mine.at(place) : nlohmann::json()) + ", the run has " +
               shown(resumed.contains(place) ? resumed.at(place) : nlohmann::json()));
}

std::unique_ptr<RunFolder> open_resumed(const TrainOptions& options) {
  const ResumedFolder place = run_folder_of(options.resume);
  if (!place.moved_to.empty()) {
    spdlog::warn("{} was converted; it is now in {}, and the run goes on in its place", options.resume,
                 place.moved_to.string());
  }
  return RunFolder::resume(place.path);
}

// What rank 0 opens with `open`, and the others follow. `resumes`: it has an archive to go on from.
template <class Open>
std::unique_ptr<RunFolder> open_together(Communicator* ranks, bool resumes, Open&& open) {
  std::unique_ptr<RunFolder> folder;
  agreed(ranks, [&] {
    if (ranks == nullptr || ranks->rank() == 0) folder = open();
  });
  if (ranks == nullptr) return folder;
  const auto full = [](const Path& path) { return std::filesystem::absolute(path).string(); };
  std::string place, archive;
  agreed(ranks, [&] {
    if (folder == nullptr) return;
    place = full(folder->folder());
    if (resumes) archive = full(folder->resume_archive());
  });
  place = text_of_first(*ranks, place);
  archive = text_of_first(*ranks, archive);
  agreed(ranks, [&] {
    if (folder == nullptr) folder = RunFolder::follow(place, archive);
  });
  return folder;
}

// Ranks on one host that may each use all its processors share them.
CommonOptions share_threads(CommonOptions common) {
  const int local = launched_ranks().local_size;
  const auto processors = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t mine;
  if (common.threads != 0 || local < 2 || ::sched_getaffinity(0, sizeof mine, &mine) != 0) return common;
  if (CPU_COUNT(&mine) * local > processors) common.threads = std::max(1, processors / local);
  return common;
}

int train_on(const TrainOptions& options, const CommonOptions& common, Communicator* ranks) {
  const bool leads = ranks == nullptr || ranks->rank() == 0;
  std::unique_ptr<RunFolder> folder;
  nlohmann::json resumed;
  if (!options.resume.empty()) {
    folder = open_together(ranks, true, [&] { return open_resumed(options); });
    agreed(ranks, [&] { resumed = folder->config(); });
  }
  std::unique_ptr<Executor> executor;  // outlives the run
  std::unique_ptr<Training> training;
  agreed(ranks, [&] {
    const GivenConfig given = read_config(options, &resumed, folder == nullptr ? Path() : folder->folder());
    executor = make_executor(common);
    training = make_training(given.json, given.folder, model_opener());
    if (ranks != nullptr) training->join(*ranks);
    if (folder != nullptr) check_resumed(*training, resumed, folder->folder());
  });
  Training& run = *training;
  const InterruptGuard guard;
  agreed(ranks, [&] {
    if (folder == nullptr) {
      run.start(*executor);
    } else {
      run.resume(*executor, folder->resume_archive());
      folder->cut_metrics(run.completed_steps());
    }
  });
  if (folder == nullptr) {
    folder = open_together(ranks, false, [&] {
      const Path place = options.out.empty() ? Path("runs") / Path(options.config).stem() : Path(options.out);
      return RunFolder::create(place, options.force);
    });
  }
  agreed(ranks, [&] { folder->write_config(run.resolved()); });
  const Index first = run.completed_steps();
  std::optional<TrainView> opened;
  agreed(ranks, [&] {
    const Path logs = options.tensorboard && leads ? (options.tensorboard->empty() ? folder->folder() / "tensorboard"
                                                                                   : Path(*options.tensorboard))
                                                   : Path();
    opened.emplace(common, run, *executor, ranks == nullptr ? 1 : ranks->size(), folder->folder(), logs);
  });
  TrainView& reporter = *opened;
  reporter.say("training " + run.summary() + ", " + executor->name() + " (" + executor->instruction_set() + ", " +
               std::to_string(executor->threads()) + " threads" +
               (ranks == nullptr ? "" : ", " + std::to_string(ranks->size()) + " ranks by " + ranks->name()) +
               "), in " + folder->folder().string() +
               (first > 0 ? ", resumed at step " + std::to_string(first) : std::string()));
  const TrainingResult result = run.run(*folder, reporter.events());
  reporter.finish();
  if (result.plateau) {
    reporter.say("stopped at step " + std::to_string(result.step) +
                 ": the held-out loss got no better (evaluation.patience)");
  }
  reporter.emit({{"finished", !result.interrupted},
                 {"plateau", result.plateau},
                 {"step", result.step},
                 {"loss", static_cast<double>(result.loss)},
                 {"checkpoint", result.checkpoint.string()}});
  if (result.interrupted) {
    spdlog::warn("interrupted after step {}; go on with: samba train --resume {}", result.step,
                 folder->folder().string());
    return kInterruptedExitCode;
  }
  if (!common.json && leads) {
    try {
      print(result.checkpoint.string() + "\n");
    } catch (const OutputClosed&) {
      return 0;
    }
  }
  return 0;
}

// The model as it is on what is held out: nothing is trained, nothing written, a run that goes on is not disturbed.
int evaluate_only(const TrainOptions& options, const CommonOptions& common) {
  Path checkpoint, folder;
  nlohmann::json resumed;
  if (!options.resume.empty()) {
    checkpoint = find_checkpoint(options.resume);
    folder = std::filesystem::is_directory(options.resume)
                 ? Path(options.resume)
                 : std::filesystem::weakly_canonical(checkpoint).parent_path().parent_path();
    const Path config = folder / "config.json";
    if (std::filesystem::is_directory(checkpoint) || !std::filesystem::exists(config)) {
      refuse_value("--eval-only --resume: " + options.resume +
                   " is no run and no checkpoint of one; a model is given "
                   "with --config and --init-from");
    }
    resumed = parse_json(read_file(config), config.string());
  }
  const GivenConfig given = read_config(options, &resumed, folder);
  const std::unique_ptr<Executor> executor = make_executor(common);
  const std::unique_ptr<Training> run = make_training(given.json, given.folder, model_opener());
  if (!run->evaluates()) {
    refuse_value(
        "--eval-only: nothing is held out: /data/evaluation_bytes is 0, or samba prepare held no documents out");
  }
  if (checkpoint.empty()) {
    run->start(*executor);
  } else {
    run->resume(*executor, checkpoint);
  }
  const EvaluationMetrics metrics = run->evaluate();
  const std::vector<std::string> samples = run->sample_texts();
  if (common.json) {
    nlohmann::ordered_json line = to_json(metrics);
    line["samples"] = samples;
    print(json_line(line));
    return 0;
  }
  std::string text = evaluation_text(metrics) + "\n";
  for (const std::string& sample : samples) text += "sample: " + nlohmann::json(sample).dump() + "\n";
  print(text);
  return 0;
}

int train(const TrainOptions& options, const CommonOptions& common) {
  check_flags(options);
  if (options.eval_only) return evaluate_only(options, common);
  if (options.print_config) {
    std::unique_ptr<RunFolder> folder;
    nlohmann::json resumed;
    if (!options.resume.empty()) {
      folder = open_resumed(options);
      resumed = folder->config();
    }
    const GivenConfig given = read_config(options, &resumed, folder == nullptr ? Path() : folder->folder());
    print(resolved_config(given.json, given.folder, model_opener()).dump(2) + "\n");
    return 0;
  }
  const std::unique_ptr<Communicator> ranks = join_ranks(std::filesystem::read_symlink("/proc/self/exe"));
  if (ranks == nullptr) return train_on(options, common, nullptr);
  CommonOptions mine = share_threads(common);
  if (ranks->rank() != 0) {  // rank 0 tells what all do
    mine.json = false;
    mine.progress = "never";
    spdlog::set_level(spdlog::level::err);
  }
  try {
    const int code = train_on(options, mine, ranks.get());
    ranks->finish();
    return code;
  } catch (const AgreedError& error) {
    const int code = exit_code(error.kind());
    if (ranks->rank() == 0) fail(error.what(), code);  // before any rank leaves: mpirun then ends the others
    ranks->finish();
    return code;
  }
}

}  // namespace

void add_train_command(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "train a model, or go on with a run");
  command->add_option("--config", options->config, "the configuration (JSON; configs/schema.json describes it)");
  command->add_option("--data", options->data,
                      "text files and folders, or token shards (of an MLP: CSV files), instead of the config's");
  command->add_option(
      "--tokenizer", options->tokenizer,
      "tokenizer.json, tokenizer.model, GGUF or a folder, instead of the config's; without one tokens are bytes");
  command->add_option("--out", options->out, "folder of the run (default: runs/NAME, NAME of the config)");
  command->add_option("--init-from", options->init_from,
                      "a model to begin from, in any form (a config without a model takes its own)");
  command->add_option("--resume", options->resume, "go on in this run folder, or from one of its checkpoints");
  command->add_flag("--force", options->force, "move a run that is in the way to DIR.old-N");
  command->add_option("--steps", options->steps, "steps in all, instead of the config's")->check(at_least_one());
  command->add_option("--set", options->set, "a field of the config: schedule.peak_lr=0.001 (repeatable)")
      ->allow_extra_args(false);
  command
      ->add_option_function<std::string>(
          "--tensorboard", [options](const std::string& folder) { options->tensorboard = folder; },
          "write event files for TensorBoard: into this folder, or into RUN/tensorboard")
      ->expected(0, 1)
      ->type_name("DIR");
  command->add_flag("--eval-only", options->eval_only,
                    "the loss on what is held out and samples of the model as it is; nothing is trained or written");
  command->add_flag("--print-config", options->print_config, "print the resolved configuration and stop");
  line.on(command, "samba train --config configs/quickstart.json --out runs/first",
          [options, &line] { return train(*options, line.common); });
}

}  // namespace samba::apps
