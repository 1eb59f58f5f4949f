// Whole models on the GPU kernels of the host adapter: training, checkpoints, prefill and decode with the bits of the
// cpu; what crosses the bus in a step; a device that fails.
#include <catch2/catch.hpp>
#include <filesystem>

#include "bits.h"
#include "command.h"
#include "error_of.h"
#include "general_stack.h"
#include "samba/backends/gpu/host/context.h"
#include "samba/backends/gpu/targets.h"
#include "samba/convert/model_source.h"
#include "samba/train/checkpoint.h"
#include "samba/train/checkpoint_image.h"
#include "small_stack.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

StackConfig stack_of(const char* model) { return stack_config_from_json(json::parse(model)); }

// Every option of a transformer block that has a gradient, in three layers.
StackConfig all_options() {
  return stack_of(R"({
    "vocab": 11, "d_model": 32, "final_norm": "layernorm", "embedding_scale": 5.5, "logits_softcap": 20, "dropout": 0.1,
    "tie_embeddings": false,
    "layers": [{"kind": "transformer", "n_heads": 4, "n_kv_heads": 2, "intermediate": 20, "norm": "rmsnorm_offset",
                "qk_norm": true, "qkv_bias": true, "window": 5, "attn_softcap": 5.0},
               {"kind": "transformer", "n_heads": 2, "head_dim": 24, "n_kv_heads": 1, "intermediate": 20,
                "norm": "layernorm", "norm_bias": true, "mlp": "gelu", "mlp_bias": true, "o_bias": true},
               {"kind": "transformer", "n_heads": 2, "intermediate": 24, "mlp": "geglu_tanh"}]})");
}

StackConfig plain_attention() {
  SambaConfigFields fields;
  fields.vocab = 40;
  fields.d_model = 32;
  fields.layers = {"attention", "attention"};
  fields.n_heads = 4;
  fields.n_kv_heads = 2;
  fields.intermediate = 40;
  return make_config(fields);
}

OptimizerSettings clipped(Index pieces = 1) {
  OptimizerSettings settings;
  settings.lr = 0.01;
  settings.max_norm = 1.0;
  settings.accumulation_steps = pieces;
  return settings;
}

std::vector<float> take_steps(SambaTrainer& trainer, Index first, Index end) {
  const Index vocab = trainer.stack().config().vocab;
  std::vector<float> metrics;
  for (Index step = first; step < end; ++step) {
    const StepResult result = trainer.train_step(token_array(2, 9, vocab, step), token_array(2, 9, vocab, step + 1));
    metrics.insert(metrics.end(), {result.loss, result.lr, result.total_norm.value_or(0.0F)});
  }
  return metrics;
}

std::unique_ptr<Executor> gpu(const std::string& set = "warp32") { return make_executor("gpu-host", {2, set}); }

}  // namespace

TEST_CASE("training on the GPU kernels gives the losses, norms and checkpoint bytes of the cpu, resumed on either") {
  const TemporaryFolder folder;
  const auto cpu = make_executor("cpu", {1, ""}), small = gpu(), large = gpu("warp64-seed3");
  for (const StackConfig& config : {plain_attention(), all_options()}) {
    const auto saved = [&](const SambaTrainer& trainer, const char* name) {
      save_checkpoint(trainer, folder.path() / name);
      return read_file(folder.path() / name);
    };
    const auto on_cpu = SambaTrainer::create(*cpu, config, 3, clipped());
    const auto on_gpu = SambaTrainer::create(*small, config, 3, clipped());
    CHECK(bits_equal(take_steps(*on_gpu, 0, 3), take_steps(*on_cpu, 0, 3)));
    CHECK(training_digest(*on_gpu) == training_digest(*on_cpu));
    CHECK(saved(*on_gpu, "gpu.samba") == saved(*on_cpu, "cpu.samba"));

    const auto from_cpu = load_for_training(*large, folder.path() / "cpu.samba");
    const auto from_gpu = load_for_training(*cpu, folder.path() / "gpu.samba");
    take_steps(*on_cpu, 3, 5);
    take_steps(*from_cpu, 3, 5);
    take_steps(*from_gpu, 3, 5);
    const std::string want = saved(*on_cpu, "whole.samba");
    CHECK(saved(*from_cpu, "there.samba") == want);
    CHECK(saved(*from_gpu, "back.samba") == want);
  }
}

TEST_CASE("the other optimizers and accumulated gradients give the cpu's bits") {
  const auto cpu = make_executor("cpu", {1, ""}), device = gpu();
  std::vector<std::string> digests;
  for (Executor* executor : {cpu.get(), device.get()}) {
    const auto trainer = SambaTrainer::create(*executor, plain_attention(), 3, clipped(2));
    trainer->train_step(token_array(2, 128, 40, 0), token_array(2, 128, 40, 1));
    digests.push_back(training_digest(*trainer));
  }
  CHECK(digests[0] == digests[1]);
  for (const OptimizerKind kind : {OptimizerKind::adam, OptimizerKind::sgd}) {
    OptimizerSettings settings = OptimizerSettings::defaults(kind);
    settings.lr = 0.01;
    if (kind == OptimizerKind::sgd) settings.momentum = 0.9;
    const auto on_cpu = SambaTrainer::create(*cpu, all_options(), 3, settings);
    const auto on_gpu = SambaTrainer::create(*device, all_options(), 3, settings);
    CHECK(bits_equal(take_steps(*on_gpu, 0, 3), take_steps(*on_cpu, 0, 3)));
    CHECK(training_digest(*on_gpu) == training_digest(*on_cpu));
  }
}

TEST_CASE("a training step moves the ids to the device, and the loss and a few numbers back") {
  const auto device = gpu();
  OptimizerSettings settings = clipped();
  const auto trainer = SambaTrainer::create(*device, plain_attention(), 3, settings);
  take_steps(*trainer, 0, 2);
  const gpu_host::Traffic before = gpu_host::traffic(*device);
  take_steps(*trainer, 2, 3);
  const gpu_host::Traffic after = gpu_host::traffic(*device);
  CHECK(after.copies_to_device - before.copies_to_device == 2);  // inputs and targets
  CHECK(after.bytes_to_device - before.bytes_to_device == 2 * 2 * 9 * 4);
  // The loss, where the first value is that is not finite (of two activations, the logits and four buffers), and the
  // sum of squares of every tensor.
  const auto tensors = static_cast<Index>(trainer->stack().registry().tensors().size());
  CHECK(after.copies_to_host - before.copies_to_host == 1 + 7 + 1);
  CHECK(after.bytes_to_host - before.bytes_to_host == 4 + 7 * 8 + 4 * tensors);
}

TEST_CASE("a decoded token moves its id to the device and its logits back") {
  const auto device = gpu();
  Generator generator(5);
  SambaStack stack(*device, plain_attention(), generator, SambaStack::Use::inference);
  const auto state = stack.allocate_state(1, 32);
  std::vector<float> logits(40);
  const std::int32_t prompt[] = {1, 2, 3, 4, 5};
  stack.prefill(prompt, 5, *state, logits);
  const gpu_host::Traffic before = gpu_host::traffic(*device);
  stack.step(std::span(prompt).first(1), *state, logits);
  const gpu_host::Traffic after = gpu_host::traffic(*device);
  CHECK(after.bytes_to_device - before.bytes_to_device == 4);
  CHECK(after.bytes_to_host - before.bytes_to_host == 4 * 40 + 2 * 8);
}

TEST_CASE("prefill, single steps and rows of many states give the cpu's logits") {
  for (const StackConfig& config : {plain_attention(), all_options()}) {
    const Index vocab = config.vocab;
    const auto run = [&](Executor& executor) {
      Generator generator(5);
      SambaStack stack(executor, config, generator, SambaStack::Use::inference);
      const Array ids = token_array(1, 14, vocab, 1);
      const auto values = ids.values<std::int32_t>();
      const auto first = stack.allocate_state(1, 32), second = stack.allocate_state(1, 32);
      std::vector<float> all, logits(static_cast<std::size_t>(vocab)), rows(2 * logits.size());
      stack.prefill(values.first(9), 9, *first, logits);
      all.insert(all.end(), logits.begin(), logits.end());
      for (std::size_t t = 9; t < 12; ++t) {
        stack.step(values.subspan(t, 1), *first, logits);
        all.insert(all.end(), logits.begin(), logits.end());
      }
      stack.prefill(values.first(12), 12, *second, logits);
      all.insert(all.end(), logits.begin(), logits.end());  // decode = prefill: the same once more
      SambaState* const states[] = {first.get(), second.get()};
      for (std::size_t t = 12; t < 14; ++t) {
        const std::int32_t together[] = {values[t], values[t]};
        stack.step_rows(together, states, rows);
        all.insert(all.end(), rows.begin(), rows.end());
      }
      return all;
    };
    const std::vector<float> want = run(*make_executor("cpu", {1, ""}));
    CHECK(bits_equal(run(*gpu()), want));
    CHECK(bits_equal(run(*gpu("warp64-seed4")), want));
    const auto width = static_cast<std::size_t>(vocab);
    CHECK(bits_equal(std::span(want).subspan(3 * width, width), std::span(want).subspan(4 * width, width)));
  }
}

TEST_CASE("a GGUF model stays in its blocks on the device and gives the cpu's logits") {
  const auto run = [](Executor& executor) {
    const auto stack = load_model(executor, find_model(Path(SAMBA_SOURCE_DIR) / "test/gguf/llama_mixed.gguf"));
    const Index vocab = stack->config().vocab;
    const auto state = stack->allocate_state(1, 32);
    std::vector<float> all, logits(static_cast<std::size_t>(vocab));
    const Array ids = token_array(1, 9, vocab, 2);
    stack->prefill(ids.values<std::int32_t>().first(7), 7, *state, logits);
    all.insert(all.end(), logits.begin(), logits.end());
    for (std::size_t t = 7; t < 9; ++t) {
      stack->step(ids.values<std::int32_t>().subspan(t, 1), *state, logits);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  };
  CHECK(bits_equal(run(*gpu()), run(*make_executor("cpu", {1, ""}))));
}

TEST_CASE("a checkpoint that is written while training goes on has the bytes of its moment") {
  const TemporaryFolder folder;
  const auto device = gpu();
  for (const StackConfig& config : {plain_attention(), all_options()}) {
    const auto trainer = SambaTrainer::create(*device, config, 3, clipped());
    CheckpointImage image;
    for (const Index step : {0, 1}) {  // the second in the memory of the first
      take_steps(*trainer, step, step + 1);
      save_checkpoint(*trainer, folder.path() / "then.samba");
      image.take(*trainer);
      take_steps(*trainer, step + 5, step + 6);
      image.write(folder.path() / "image.samba");
      CHECK(read_file(folder.path() / "image.samba") == read_file(folder.path() / "then.samba"));
      save_checkpoint(*trainer, folder.path() / "now.samba");
      CHECK(read_file(folder.path() / "image.samba") != read_file(folder.path() / "now.samba"));
    }
  }
}

namespace {

// A run of an attention stack; the device fails after a number of launches.
class AttentionRun : public TinyRun {
 public:
  AttentionRun() {
    json config = tiny_config("text.txt");
    config["model"]["layers"] = {"attention", "attention"};
    config["steps"] = 4;
    config["checkpoint"] = {{"every", 2}, {"digest_every", 1}};
    write(config);
  }
};

}  // namespace

TEST_CASE("a run on the GPU kernels has the cpu's metrics, parameter hashes, cards and checkpoints") {
  const AttentionRun run;
  REQUIRE(run.train("cpu", {"--device", "cpu"}).code == 0);
  const CommandResult result = run.train("gpu", {"--device", "gpu-host"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(metrics_of(run.path() / "gpu") == metrics_of(run.path() / "cpu"));
  const std::string last = "checkpoints/step-00000004.samba";
  CHECK(read_file(run.path() / "gpu" / last) == read_file(run.path() / "cpu" / last));
}

TEST_CASE("a device that fails in a run says so in one line, exit 4, and nothing is lost") {
  const AttentionRun run;
  REQUIRE(run.train("whole", {"--device", "cpu"}).code == 0);
  const CommandResult failed = run.train("failed", {"--device", "gpu-host", "--isa", "warp32-launches700"});
  INFO(failed.err);
  CHECK(failed.code == 4);
  CHECK_THAT(failed.err, Contains("device gpu-host: launching a kernel: no launch is left"));
  REQUIRE(read_file(run.path() / "failed/latest") == "checkpoints/step-00000002.samba\n");
  const CommandResult resumed = samba_command({"train", "--resume", run.file("failed"), "--device", "gpu-host"});
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  const std::string last = "checkpoints/step-00000004.samba";
  CHECK(read_file(run.path() / "failed" / last) == read_file(run.path() / "whole" / last));
}

TEST_CASE("too little device memory and missing code are told in one line, exit 4") {
  const AttentionRun run;
  const CommandResult memory = run.train("memory", {"--device", "gpu-host", "--isa", "warp32-memory1"});
  CHECK(memory.code == 4);
  CHECK_THAT(memory.err, Contains("out of device memory: ") && Contains("bytes were asked for"));
  const CommandResult code = run.train("code", {"--device", "gpu-host", "--isa", "warp32-launches0"});
  CHECK(code.code == 4);
  CHECK_THAT(code.err, Contains("this program has no code for the device the host adapter (warp32)"));
  for (const CommandResult& result : {memory, code}) {
    const std::size_t at = result.err.find("samba: ");
    CHECK(result.err.find('\n', at) == result.err.size() - 1);  // the last line
  }
}

TEST_CASE("auto takes a device that is there and has every kernel, else the cpu") {
  const std::vector<std::string> absent = {"no such device"}, host = {"gpu-host"};
  CHECK(make_first_executor(absent, {})->name() == "cpu");
  CHECK(make_first_executor(host, {})->name() == (gpu_host::has_every_kernel(*gpu()) ? "gpu-host" : "cpu"));
  CHECK(make_executor("auto", {1, instruction_sets().front()})->name() == "cpu");
}

}  // namespace samba
