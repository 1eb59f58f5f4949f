#include "verify_files.h"

#include <algorithm>
#include <cstdio>

#include "model_input.h"
#include "output.h"
#include "progress.h"
#include "samba/core/error.h"
#include "samba/core/files.h"
#include "samba/core/json_fields.h"
#include "samba/verify/compare_files.h"
#include "samba/verify/model_record.h"
#include "samba/verify/replay.h"
#include "samba/verify/replay_batch.h"
#include "verify_suites.h"

namespace samba::apps {

namespace {

// Of a gradient or a loss, which may not be a number.
std::string short_number(double value) {
  char text[48];
  std::snprintf(text, sizeof text, "%.5g", value);
  return text;
}

// Of a text, in quotes; bytes that are no UTF-8 as U+FFFD.
std::string beginning_of(const std::string& text) {
  constexpr std::size_t kMost = 60;
  const nlohmann::json shown = text.substr(0, kMost);
  return shown.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + (text.size() > kMost ? "..." : "");
}

int verify_batch(const std::string& file, const CommonOptions& common) {
  const std::unique_ptr<Executor> executor = make_executor(common);
  std::unique_ptr<Progress> progress;
  const verify::BatchReplay replay = verify::replay_batch(*executor, file, [&](Index step) {
    if (!progress) progress = std::make_unique<Progress>(common.progress, "replay", "steps", step, 0);
    progress->update(static_cast<std::uint64_t>(step));
  });
  if (progress) progress->finish();
  if (common.json) {
    nlohmann::ordered_json document = origin_json();
    document.update({{"file", file}, {"device", executor->name()}, {"instruction_set", executor->instruction_set()}});
    document["threads"] = executor->threads();
    document.update(verify::replay_batch_json(replay));
    print(json_line(document));
    return replay.passed() ? 0 : 1;
  }
  std::string text = "step " + std::to_string(replay.batch.step) + " of " + replay.run.string() + " again, " +
                     std::to_string(replay.steps) + " steps behind " + replay.from + ", on " + executor->name() + " (" +
                     executor->instruction_set() + ", " + std::to_string(executor->threads()) + " threads)\n" +
                     "the run told: " + replay.batch.message + "\n";
  constexpr std::size_t kShown = 5;
  const BatchFigures& figures = replay.figures;
  if (!figures.row_losses.empty()) {
    text += "loss of the batch " + short_number(static_cast<double>(figures.loss)) + "; of its rows alone:\n";
    const std::vector<std::size_t> rows = verify::rows_by_loss(figures);
    for (std::size_t i = 0; i < std::min(kShown, rows.size()); ++i) {
      text +=
          "  row " + std::to_string(rows[i]) + ": " + short_number(static_cast<double>(figures.row_losses[rows[i]]));
      if (!figures.row_texts.empty()) text += "  " + beginning_of(figures.row_texts[rows[i]]);
      text += "\n";
    }
    if (rows.size() > kShown) text += "  and " + std::to_string(rows.size() - kShown) + " more\n";
  }
  const std::vector<BatchFigures::Tensor> tensors = verify::tensors_by_norm(figures);
  for (std::size_t i = 0; i < std::min(kShown, tensors.size()); ++i) {
    text += "gradient of " + tensors[i].name + ": norm " + short_number(tensors[i].norm) +
            (tensors[i].non_finite > 0 ? ", " + std::to_string(tensors[i].non_finite) + " elements not finite" : "") +
            "\n";
  }
  text += replay.passed() ? "equal: " + replay.outcome + "\n" : "different: " + replay.difference + "\n";
  print(text);
  return replay.passed() ? 0 : 1;
}

}  // namespace

int verify_replay(const std::string& run, const std::string& steps, const CommonOptions& common) {
  if (std::filesystem::is_regular_file(run)) {
    if (!steps.empty()) refuse_value("--steps is of a run; " + run + " is a file of one step's batch");
    return verify_batch(run, common);
  }
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

int record_model(const RecordFlags& flags, const CommonOptions& common) {
  if (flags.model.empty()) refuse_value("--record needs --model");
  check_can_write(flags.record);
  const LoadedModel model = load_model(flags.model, "", common);
  PromptOptions options;
  options.prompts = flags.prompts;
  options.tokens = flags.tokens;
  verify::RecordRequest request;
  for (Prompt& prompt : encoded_prompts(options, model, "--prompt"))
    request.prompts.push_back(std::move(prompt.tokens));
  request.decode = flags.decode;
  nlohmann::json record = verify::record_model(*model.stack, request);
  std::size_t results = 1;  // the weights; of each prompt its results and its tokens
  for (const nlohmann::json& prompt : record.at("prompts")) results += prompt.at("results").size() + 1;
  record["model"] = std::filesystem::absolute(flags.model).string();
  record["made_by"] = origin_json();
  record["made_by"]["device"] = model.executor->name();
  write_file_atomically(flags.record, record.dump() + "\n");
  print("recorded " + std::to_string(results) + " results of " + std::to_string(request.prompts.size()) +
        " prompt(s) in " + flags.record + "; check them with: samba verify --against " + flags.record + "\n");
  return 0;
}

int verify_against(const RecordFlags& flags, const CommonOptions& common) {
  const nlohmann::json record = parse_json(read_file(flags.against), flags.against);
  const verify::RecordRequest request = verify::request_of(record);
  const std::string path = flags.model.empty() ? record.value("model", "") : flags.model;
  const LoadedModel model = load_model(path, "", common);
  const verify::RecordComparison comparison =
      verify::compare_records(verify::record_model(*model.stack, request), record);
  const std::string closing =
      "results: " + std::to_string(comparison.equal) + " equal, " + std::to_string(comparison.different) + " different";
  if (common.json) {
    nlohmann::json document = origin_json();
    document.update({{"against", flags.against},
                     {"model", path},
                     {"device", model.executor->name()},
                     {"instruction_set", model.executor->instruction_set()},
                     {"threads", model.executor->threads()},
                     {"equal", comparison.equal},
                     {"different", comparison.different},
                     {"differences", comparison.lines}});
    print(document.dump() + "\n");
    return comparison.passed() ? 0 : 1;
  }
  std::string text = path + " on " + model.executor->name() + " (" + model.executor->instruction_set() + ", " +
                     std::to_string(model.executor->threads()) + " threads) against " + flags.against + "\n";
  constexpr std::size_t kShown = 5;
  for (std::size_t i = 0; i < std::min(kShown, comparison.lines.size()); ++i) {
    text += (i == 0 ? "they part at " : "  also ") + comparison.lines[i] + "\n";
  }
  if (comparison.lines.size() > kShown) text += "  and " + std::to_string(comparison.lines.size() - kShown) + " more\n";
  print(text + closing + "\n");
  return comparison.passed() ? 0 : 1;
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
