// samba prepare: token shards from text.

#include <spdlog/spdlog.h>

#include <cstdio>
#include <thread>

#include "commands.h"
#include "output.h"
#include "progress.h"
#include "samba/convert/initial_model.h"
#include "samba/core/error.h"
#include "samba/core/interrupt.h"
#include "samba/train/prepare.h"

namespace samba::apps {

namespace {

struct PrepareFlags {
  PrepareOptions options;
  std::string out;
  std::string model;
  std::string documents = "file";
};

std::string with_unit(double value, const char* pattern) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

std::string text_of(const ShardSetCounts& counts) {
  std::string text = std::to_string(counts.documents) + " documents, " + std::to_string(counts.tokens) + " tokens";
  if (counts.ignored > 0) text += " (" + std::to_string(counts.ignored) + " of prompts)";
  return text;
}

std::string text_of(const PrepareReport& report, const PrepareOptions& options) {
  const auto bytes = static_cast<double>(report.train.bytes + report.held_out.bytes);
  const auto tokens = static_cast<double>(report.train.tokens + report.held_out.tokens);
  std::string text = options.out.string() + ": " + text_of(report.train) + "\n";
  if (options.held_out > 0.0) text += "held out: " + text_of(report.held_out) + "\n";
  text += with_unit(bytes / 1e6, "%.1f MB of text in ") + std::to_string(report.files) + " file(s), " +
          with_unit(bytes / tokens, "%.2f bytes a token");
  if (options.deduplicate) text += ", " + std::to_string(report.duplicates) + " duplicates dropped";
  return text + with_unit(report.seconds, ", %.1f s") + with_unit(bytes / 1e6 / report.seconds, " (%.1f MB/s)\n");
}

int run(const PrepareFlags& flags, const CommonOptions& common) {
  PrepareOptions options = flags.options;
  options.out = flags.out;
  if (!flags.model.empty()) {
    if (!options.tokenizer.empty()) refuse_value("--model and --tokenizer exclude each other");
    options.tokenizer = model_opener().open(flags.model).tokenizer;
    if (options.tokenizer.empty()) spdlog::info("{} has no tokenizer of its own: tokens are bytes", flags.model);
  }
  options.documents.unit = flags.documents == "file"   ? DocumentUnit::file
                           : flags.documents == "line" ? DocumentUnit::line
                                                       : DocumentUnit::paragraph;
  options.threads = common.threads > 0 ? common.threads : static_cast<int>(std::thread::hardware_concurrency());
  if (options.resume && options.force) {
    refuse_value("--resume and --force exclude each other: --force replaces what a preparation left");
  }
  const InterruptGuard guard;
  std::unique_ptr<Progress> progress;
  PrepareHooks hooks;
  hooks.interrupted = interrupt_requested;
  hooks.on_progress = [&](const PrepareProgress& at) {
    constexpr std::uint64_t kMegabyte = 1000000;
    const std::uint64_t read = at.bytes_read / kMegabyte;
    if (progress == nullptr) {
      progress = std::make_unique<Progress>(common.progress, "prepare", "MB", read,
                                            (at.bytes_in_all + kMegabyte - 1) / kMegabyte);
    }
    progress->update(read, std::to_string(at.documents) + " documents  " + std::to_string(at.tokens) + " tokens");
  };
  const PrepareReport report = prepare(options, model_opener(), hooks);
  if (progress) progress->finish();
  if (report.interrupted) {
    spdlog::warn("interrupted; the same command with --resume goes on behind {} tokens",
                 report.train.tokens + report.held_out.tokens);
  } else if (options.held_out > 0.0 && report.held_out.documents == 0) {
    spdlog::warn("no document was held out: {} of {} documents are too few; see --documents", options.held_out,
                 report.train.documents);
  }
  if (common.json) {
    print(json_line(to_json(report)));
  } else if (!report.interrupted) {
    print(text_of(report, options));
  }
  return report.interrupted ? kInterruptedExitCode : 0;
}

}  // namespace

void add_prepare_command(CLI::App& app, CommandLine& line) {
  auto flags = std::make_shared<PrepareFlags>();
  PrepareOptions& options = flags->options;
  CLI::App* command = app.add_subcommand("prepare", "make token shards from text, for samba train");
  command
      ->add_option("PATHS", options.paths,
                   "text files, JSON lines (.jsonl, .ndjson), either of them as .gz or .zst, and folders of such")
      ->required();
  command->add_option("--out", flags->out, "the folder of the shards")->required();
  command->add_option("--tokenizer", options.tokenizer,
                      "tokenizer.json, tokenizer.model, GGUF or a folder; without one tokens are bytes");
  command->add_option("--model", flags->model, "a model whose tokenizer is taken");
  command->add_option("--documents", flags->documents, "what a document of a text file is: file, line or paragraph")
      ->check(CLI::IsMember({"file", "line", "paragraph"}))
      ->capture_default_str();
  command->add_option("--text-field", options.documents.text_field, "of JSON lines: the text")->capture_default_str();
  command->add_option("--prompt-field", options.documents.prompt_field, "of JSON lines: text that is not learned")
      ->capture_default_str();
  command
      ->add_option("--completion-field", options.documents.completion_field, "of JSON lines: what follows the prompt")
      ->capture_default_str();
  command->add_option("--end-token", options.end_token,
                      "behind every document: an id, a piece or none (default: the tokenizer's own; 10 of bytes)");
  command->add_option("--held-out", options.held_out, "the part of the documents that is kept for evaluation: 0.01")
      ->capture_default_str();
  command->add_flag("--dedup", options.deduplicate, "drop documents that came before");
  command->add_option("--shard-tokens", options.shard_tokens, "tokens of a shard")->capture_default_str();
  command->add_flag("--resume", options.resume, "go on with a preparation that was stopped");
  command->add_flag("--force", options.force, "replace the shards that are there");
  line.on(command, "samba prepare corpus/ --tokenizer tokenizer.json --held-out 0.01 --out shards",
          [flags, &line] { return run(*flags, line.common); });
}

}  // namespace samba::apps
