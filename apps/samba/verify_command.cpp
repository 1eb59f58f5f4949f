// samba verify: the reference cases on the chosen device, and the checks of a checkpoint.

#include "samba/verify/verify.h"

#include <spdlog/spdlog.h>

#include <cstdio>

#include "commands.h"
#include "mlp_commands.h"
#include "model_input.h"
#include "output.h"
#include "progress.h"
#include "samba/backends/registry.h"
#include "samba/convert/model_source.h"
#include "samba/core/error.h"
#include "samba/formats/file_hashes.h"
#include "samba/verify/model_check.h"
#include "verify_files.h"
#include "verify_suites.h"

namespace samba::apps {

namespace {

struct VerifyFlags {
  std::vector<std::string> cases;
  std::string model;
  bool write_hashes = false;
  SuiteFlags suites;
  bool list = false;
  std::string replay;
  std::string steps;
  std::vector<std::string> compare;
  RecordFlags record;
  int tutorial_steps = 0;  // 0: all
};

int verify_recorded(const VerifyFlags& flags, const CommonOptions& common) {
  const std::unique_ptr<Executor> executor = make_executor(common);
  const std::vector<std::filesystem::path> paths(flags.cases.begin(), flags.cases.end());
  verify::VerifyOptions options;
  options.id_part = flags.suites.only;
  options.digests = common.json;
  options.reference = [] { return samba::make_executor("reference"); };
  if (flags.tutorial_steps > 0) options.most_tutorial_steps = static_cast<std::size_t>(flags.tutorial_steps);
  std::unique_ptr<Progress> progress;
  options.progress = [&](std::size_t done, std::size_t total, const std::string& id) {
    if (!progress) progress = std::make_unique<Progress>(common.progress, "verify", "cases", 0, total);
    progress->update(done, id);
  };
  const verify::VerifyReport report =
      verify::verify_cases(*executor, paths, options, [&](const verify::CaseResult& result) {
        const bool shown = flags.suites.all || result.verdict == verify::Verdict::different;
        if (shown && !common.json) print(verify::result_line(result) + "\n");
      });
  if (progress) progress->finish();
  if (report.results.empty())
    refuse_value("--cases holds no case" + (flags.suites.only.empty() ? "" : " of --only " + flags.suites.only));
  if (common.json) {
    nlohmann::json document = origin_json();
    document.update(verify::report_json(report, *executor));
    print(document.dump() + "\n");
  } else {
    print("device " + executor->name() + ", instruction set " + executor->instruction_set() + ", threads " +
          std::to_string(executor->threads()) + "\n" + verify::summary_table(report));
    if (flags.tutorial_steps > 0) {
      print("of tutorials only the first " + std::to_string(flags.tutorial_steps) + " steps were compared\n");
    }
    print(verify::closing_line(report) + "\n");
  }
  return report.passed() ? 0 : 1;
}

std::string check_line(const verify::ModelCheck& check) {
  char line[128];
  std::snprintf(line, sizeof line, "%-7s %-28s %8.2f s  ", check.passed ? "ok" : "FAILED", check.name.c_str(),
                check.seconds);
  return line + check.detail + "\n";
}

int verify_model(const VerifyFlags& flags, const CommonOptions& common) {
  const Path path = find_model(flags.model).path;
  if (flags.write_hashes) {
    const ModelForm form = find_model(flags.model).form;
    if (is_own_form(form) && form != ModelForm::folder) {
      refuse_value("--write-hashes: " + path.string() + " carries its digests in itself");
    }
    spdlog::info("wrote {}", write_hashes(path).string());
  }
  refuse_mlp(path, "verify --model", "samba inspect checks its file");
  const auto make = [&](const verify::ExecutorChoice& choice) {
    CommonOptions wanted = common;
    if (!choice.device.empty()) wanted.device = choice.device;
    if (!choice.instruction_set.empty()) wanted.instruction_set = choice.instruction_set;
    if (choice.threads > 0) wanted.threads = choice.threads;
    return make_executor(wanted);
  };
  const auto checks = verify::check_model(path, make, instruction_sets(), {}, [&](const verify::ModelCheck& check) {
    if (!common.json) print(check_line(check));
  });
  std::size_t failed = 0;
  nlohmann::json list = nlohmann::json::array();
  for (const verify::ModelCheck& check : checks) {
    failed += check.passed ? 0 : 1;
    list.push_back(
        {{"name", check.name}, {"passed", check.passed}, {"detail", check.detail}, {"seconds", check.seconds}});
  }
  if (common.json) {
    print(nlohmann::json{{"file", path.string()}, {"failed", failed}, {"checks", std::move(list)}}.dump() + "\n");
  } else {
    print("checks: " + std::to_string(checks.size() - failed) + " passed, " + std::to_string(failed) + " failed\n");
  }
  return failed == 0 ? 0 : 1;
}

// What was asked for: exactly one of the suites, --cases, --model, --list.
int run(const VerifyFlags& flags, const CommonOptions& common) {
  const bool recorded = !flags.record.record.empty() || !flags.record.against.empty();
  const int others = (flags.cases.empty() ? 0 : 1) + (flags.model.empty() || recorded ? 0 : 1) + (flags.list ? 1 : 0) +
                     (flags.replay.empty() ? 0 : 1) + (flags.compare.empty() ? 0 : 1) +
                     (flags.record.record.empty() ? 0 : 1) + (flags.record.against.empty() ? 0 : 1);
  if (others > 1 || (others == 1 && (!flags.suites.names.empty() || flags.suites.quick))) {
    refuse_value(
        "samba verify takes one of: suites (with --quick), --list, --cases, --model, --replay, --compare, --record, "
        "--against");
  }
  if (flags.write_hashes && (flags.model.empty() || recorded)) refuse_value("--write-hashes belongs to --model");
  if (!flags.steps.empty() && flags.replay.empty()) refuse_value("--steps belongs to --replay");
  if (flags.list) return list_suites(common);
  RecordFlags record = flags.record;
  record.model = flags.model;
  if (!record.record.empty()) return record_model(record, common);
  if (!record.against.empty()) return verify_against(record, common);
  if (!flags.cases.empty()) return verify_recorded(flags, common);
  if (!flags.model.empty()) return verify_model(flags, common);
  if (!flags.replay.empty()) return verify_replay(flags.replay, flags.steps, common);
  if (!flags.compare.empty()) return verify_compare(flags.compare, common);
  return verify_suites(flags.suites, common);
}

}  // namespace

void add_verify_command(CLI::App& app, CommandLine& line) {
  auto flags = std::make_shared<VerifyFlags>();
  CLI::App* command = app.add_subcommand("verify", "compare this machine, or a checkpoint, with the reference");
  command->add_option("SUITE", flags->suites.names, "suites that come with samba (--list); default: all of them");
  command->add_flag("--list", flags->list, "list those suites");
  command->add_flag("--quick", flags->suites.quick, "fewer of their cases, within 15 seconds");
  command->add_option("--cases", flags->cases, "files or folders of recorded cases; repeatable");
  command->add_option("--only", flags->suites.only, "only the cases whose name holds this text");
  command->add_flag("--all", flags->suites.all, "a line for every case, not only for those that differ");
  command
      ->add_option(
          "--tutorial-steps", flags->tutorial_steps,
          "with --cases: take only the first so many steps of tutorials, and leave the rest of them uncompared")
      ->check(at_least_one());
  command->add_option("--model", flags->model, std::string("check a model: ") + kModelForms);
  command->add_flag("--write-hashes", flags->write_hashes,
                    "of --model: write the digests of its files beside them, for every later check");
  command->add_option(
      "--replay", flags->replay,
      "take a stretch of this finished run again and compare; or RUN/batches/STEP.json, a step that was warned of");
  command->add_option("--steps", flags->steps, "of --replay: FIRST..LAST, FIRST.. or one step (default: all)");
  command->add_option("--compare", flags->compare, "two models, two metrics.jsonl or two run folders: where they part")
      ->expected(2);
  command->add_option("--record", flags->record.record, "write here what --model computes for prompts, to be checked");
  command->add_option("--against", flags->record.against,
                      "check such a record here (--model: where the model lies now)");
  command->add_option("--prompt", flags->record.prompts, "of --record: a text; repeatable")->allow_extra_args(false);
  command->add_option("--tokens", flags->record.tokens, "of --record: ids separated by commas; repeatable")
      ->allow_extra_args(false);
  command->add_option("--decode", flags->record.decode, "of --record: tokens decoded behind each prompt")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  line.on(command,
          "samba verify\n  samba verify --quick --json > report.json\n  samba verify columns mamba3 --device cpu\n"
          "  samba verify --model runs/first\n  samba verify --replay runs/first --steps 41..60\n"
          "  samba verify --replay runs/first/batches/step-00000123.json\n"
          "  samba verify --compare runs/first runs/second\n"
          "  samba verify --record mine.json --model runs/first --prompt 'The '\n  samba verify --against mine.json",
          [flags, &line] { return run(*flags, line.common); });
}

}  // namespace samba::apps
