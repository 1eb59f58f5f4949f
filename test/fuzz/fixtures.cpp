#include "fuzz/fixtures.h"

#include "fuzz/readers.h"
#include "samba/backends/reference/executor.h"
#include "samba/convert/convert.h"
#include "samba/convert/initial_model.h"
#include "samba/core/json_fields.h"
#include "samba/formats/file_hashes.h"
#include "samba/numerics/generator.h"
#include "samba/train/checkpoint.h"
#include "samba/train/run_folder.h"

namespace samba::fuzz {

Executor& reference_executor() {
  static const std::unique_ptr<Executor> executor = reference::make_reference_executor();
  return *executor;
}

StackConfig stack_of(const char* json) { return stack_config_from_json(parse_json(json, "fixture")); }

StackConfig tiny_stack_config() {
  return stack_of(
      R"({"vocab": 5, "d_model": 32, "layers": [{"kind": "transformer", "n_heads": 2, "head_dim": 2, "intermediate": 3},
                                                {"kind": "mamba1"}, {"kind": "mamba2"}]})");
}

SambaStack& tiny_stack() {
  static const std::unique_ptr<SambaStack> stack = [] {
    Generator generator(7);
    return std::make_unique<SambaStack>(reference_executor(), tiny_stack_config(), generator,
                                        SambaStack::Use::inference);
  }();
  return *stack;
}

std::unique_ptr<SambaTrainer> trained(const StackConfig& config) {
  OptimizerSettings settings;
  settings.max_norm = 0.5;
  ScheduleFields schedule;
  schedule.kind = "cosine";
  schedule.peak_lr = 0.01;
  schedule.warmup_steps = 1;
  schedule.total_steps = 9;
  auto trainer = SambaTrainer::create(reference_executor(), config, 3, settings, Schedule(schedule));
  Array ids(DType::int32, {1, 3});
  auto values = ids.values<std::int32_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<std::int32_t>(static_cast<Index>(3 * i) % config.vocab);
  }
  trainer->train_step(ids, ids);
  return trainer;
}

Files files_below(const Path& folder) {
  Files files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.path().filename() == ".lock") continue;
    files[entry.path().lexically_relative(folder).string()] = read_file(entry.path());
  }
  return files;
}

const Files& sound_folder() {
  static const Files files = [] {
    const Path file = scratch_folder() / "folder.samba", folder = scratch_folder() / "sound_folder";
    save_checkpoint(*trained(stack_of(R"({"vocab": 5, "d_model": 4, "tie_embeddings": false,
                                          "layers": [{"kind": "transformer", "n_heads": 2, "intermediate": 3}]})")),
                    file);
    ConvertOptions options;
    options.target = ConvertTarget::folder;
    convert_model(find_model(file), folder, options);
    Files made = files_below(folder);
    made.erase(kHashesFile);
    return made;
  }();
  return files;
}

namespace {

// Three of ten documents are held out; both sets have several shards, and tokens that do not count.
PrepareOptions preparation() {
  const Path folder = scratch_folder() / "texts";
  std::filesystem::create_directory(folder);
  std::string lines;
  for (int i = 0; i < 12; ++i) {
    const std::string number = std::to_string(i);
    lines += i % 3 == 0 ? R"({"prompt": "how many are )" + number + R"(?", "completion": ")" + number + "\"}\n"
                        : R"({"text": "the text no. )" + number + "\"}\n";
  }
  write_file_atomically(folder / "a.jsonl", lines);
  write_file_atomically(folder / "b.txt", "a plain text");
  PrepareOptions options;
  options.paths = {folder.string()};
  options.held_out = 0.3;
  options.deduplicate = true;
  options.shard_tokens = 72;
  return options;
}

}  // namespace

const Files& sound_shards() {
  static const Files files = [] {
    PrepareOptions options = preparation();
    options.out = scratch_folder() / "sound_shards";
    prepare(options, model_opener());
    return files_below(options.out);
  }();
  return files;
}

const StoppedPreparation& stopped_preparation() {
  static const StoppedPreparation stopped = [] {
    StoppedPreparation made;
    made.options = preparation();
    made.options.out = scratch_folder() / "sound_preparation";
    PrepareHooks hooks;
    hooks.interrupted = [] { return true; };
    prepare(made.options, model_opener(), hooks);
    made.files = files_below(made.options.out);
    return made;
  }();
  return stopped;
}

const Files& sound_run() {
  static const Files files = [] {
    const nlohmann::json config = parse_json(
        R"({"seed": 3, "steps": 2,
            "model": {"vocab": 256, "d_model": 2, "layers": [{"kind": "transformer", "n_heads": 1, "intermediate": 1}]},
            "data": {"paths": ["text.txt"]}, "batch": {"rows": 1, "length": 3}, "optimizer": {"lr": 0.01}})",
        "fixture");
    const Path folder = scratch_folder() / "sound_run";
    {
      const auto run = RunFolder::create(folder, false);
      const TrainConfig parsed = parse_train_config(config, "/");
      run->write_config(resolved_json(parsed));
      StepMetrics metrics;
      metrics.step = 1;
      metrics.loss = 5.5F;
      metrics.lr = 0.01F;
      metrics.tokens = 3;
      metrics.card = std::string(64, 'a');
      run->add_metrics(to_json(metrics));
      run->add_metrics(to_json(EvaluationMetrics{1, 5.25, 7.5, std::nullopt, false}));
      const auto trainer = trained(parsed.model);
      Sidecar sidecar;
      sidecar.step = 1;
      sidecar.profile = "samba.stack.fp32.v1";
      sidecar.data_order = "draw.v1";
      run->add_checkpoint(1, {}, sidecar, [&](const Path& path) { return save_checkpoint(*trainer, path); });
    }
    std::filesystem::remove(folder / "run.log");
    return files_below(folder);
  }();
  return files;
}

}  // namespace samba::fuzz
