// samba train-tokenizer: a byte-level BPE tokenizer.json from text.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "commands.h"
#include "output.h"
#include "samba/core/error.h"
#include "samba/core/files.h"
#include "samba/text/bpe_trainer.h"
#include "samba/train/data.h"

namespace samba::apps {

namespace {

struct TrainTokenizerFlags {
  std::vector<std::string> paths;
  std::string out;
  bool force = false;
  BpeTraining training;
};

int run(const TrainTokenizerFlags& flags, const CommonOptions& common) {
  namespace fs = std::filesystem;
  const Path out = fs::is_directory(flags.out) ? Path(flags.out) / "tokenizer.json" : Path(flags.out);
  if (fs::exists(out) && !flags.force) refuse_value(out.string() + ": is there already; --force replaces it");
  for (const std::string& path : flags.paths) {
    if (!std::filesystem::exists(path)) refuse_value("there is no file or folder " + path);
  }
  check_can_write(out);
  const TextData text(flags.paths);
  std::vector<std::string_view> runs;
  text.for_each_run(text.size(), [&](const std::uint8_t* bytes, std::size_t count) {
    runs.emplace_back(reinterpret_cast<const char*>(bytes), count);
  });
  BpeTraining training = flags.training;
  training.threads = common.threads > 0 ? common.threads : static_cast<int>(std::thread::hardware_concurrency());
  const TrainedBpe trained = train_bpe(runs, training);
  write_file_atomically(out, trained.json);
  if (common.json) {
    print(json_line({{"file", out.string()},
                     {"bytes", text.size()},
                     {"distinct_pieces", trained.distinct_pieces},
                     {"merges", trained.merges},
                     {"vocabulary_size", trained.vocabulary_size}}));
    return 0;
  }
  print(out.string() + ": " + std::to_string(trained.vocabulary_size) + " pieces, " + std::to_string(trained.merges) +
        " merges from " + std::to_string(text.size()) + " bytes\n");
  if (trained.vocabulary_size < training.vocabulary_size && common.progress != "never") {
    std::fprintf(stderr, "no further pair comes %lld times: the vocabulary stays below %lld\n",
                 static_cast<long long>(training.min_frequency), static_cast<long long>(training.vocabulary_size));
  }
  return 0;
}

}  // namespace

void add_train_tokenizer_command(CLI::App& app, CommandLine& line) {
  auto flags = std::make_shared<TrainTokenizerFlags>();
  BpeTraining& training = flags->training;
  CLI::App* command = app.add_subcommand("train-tokenizer", "make a byte-level BPE tokenizer.json from text");
  command->add_option("PATHS", flags->paths, "text files and folders of such")->required();
  command->add_option("--out", flags->out, "the file to write, or a folder for a tokenizer.json")->required();
  command->add_option("--vocab-size", training.vocabulary_size, "pieces, the 256 bytes and special tokens included")
      ->capture_default_str();
  command->add_option("--min-frequency", training.min_frequency, "of a pair that is merged")->capture_default_str();
  command->add_option("--special", training.special_tokens, "a special token (repeatable; default <|endoftext|>)")
      ->allow_extra_args(false);
  command->add_option("--form", training.form, "how text is cut before merging")
      ->check(CLI::IsMember(bpe_forms()))
      ->capture_default_str();
  command->add_flag("--force", flags->force, "replace the file");
  line.on(command, "samba train-tokenizer corpus.txt --vocab-size 4096 --out tokenizer.json",
          [flags, &line] { return run(*flags, line.common); });
}

}  // namespace samba::apps
