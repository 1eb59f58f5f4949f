// The memory plan says what a stack and a trainer then take; for inference a stack holds every matrix once.
#include "samba/train/memory_plan.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "general_stack.h"
#include "gguf_bytes.h"
#include "samba/backends/host_memory.h"
#include "samba/convert/model_source.h"
#include "samba/core/error.h"
#include "samba/core/resident.h"
#include "samba/model/weight_source.h"
#include "small_stack.h"
#include "temporary_folder.h"

using namespace samba;
using Catch::Contains;

namespace {

std::uint64_t float_bytes(Index count) { return 4 * static_cast<std::uint64_t>(count); }

StackConfig tied_stack() { return small_general_config(R"({"vocab": 96, "tie_embeddings": true})"); }

Array ids_of(const StackConfig& config, Index rows, Index length) { return token_array(rows, length, config.vocab, 3); }

}  // namespace

TEST_CASE("the scratch memory of a call is what the plan says") {
  for (const char* device : {"reference", "cpu"}) {
    const auto executor = make_executor(device, {.threads = 2, .instruction_set = ""});
    for (const StackConfig& config : {tied_stack(), StackConfig(small_config())}) {
      CAPTURE(device, config.samba.has_value());
      const MemoryPlan plan = plan_inference(*executor, config, {WeightFormat::float32, 2, 12, 8});
      Generator generator(1);
      SambaStack stack(*executor, config, generator, SambaStack::Use::inference);
      stack.reserve_workspace(plan.workspace);
      const auto state = stack.allocate_state(2, 12);
      std::vector<float> logits(static_cast<std::size_t>(2 * config.vocab));
      for (const Index length : {8, 4}) {
        const Array ids = ids_of(config, 2, length);
        stack.prefill(ids.values<std::int32_t>(), length, *state, logits);
      }
      CHECK(stack.workspace_bytes() == plan.workspace);
    }
  }
}

TEST_CASE("for inference a stack holds panels, and the small weights") {
  const auto executor = make_executor("reference");
  for (const bool tied : {true, false}) {
    StackConfig config = tied_stack();
    config.tie_embeddings = tied;
    const Registry registry(config);
    const MemoryPlan plan = plan_inference(*executor, config, {});
    std::uint64_t elements = 0;  // what is read element by element, and an embedding that is not the head
    for (const ParameterTensor& tensor : registry.tensors()) {
      const bool product = tensor.name.ends_with("_proj.weight") || tensor.name == "lm_head.weight" ||
                           (tied && tensor.name == "embed.weight");
      if (!product) elements += float_bytes(tensor.size);
    }
    CHECK(plan.panels == float_bytes(registry.total()) - elements);
    CHECK(plan.weights >= elements);
    CHECK(plan.weights < elements + 32768);  // what blocks make of their small weights
    CHECK(plan.moments == 0);
    CHECK(plan.gradients == 0);
  }
}

TEST_CASE("packed matrices are planned in their format") {
  const auto executor = make_executor("reference");
  const MemoryPlan whole = plan_inference(*executor, tied_stack(), {});
  const MemoryPlan half = plan_inference(*executor, tied_stack(), {.format = WeightFormat::bfloat16});
  CHECK(2 * half.panels == whole.panels);
  CHECK(half.states == whole.states);
}

TEST_CASE("training adds moments, and a gradient for every level of accumulation") {
  const auto executor = make_executor("cpu", {.threads = 2, .instruction_set = ""});
  const StackConfig config = small_config();
  const std::uint64_t size = float_bytes(Registry(config).total());
  OptimizerSettings settings;
  MemoryPlan plan = plan_training(*executor, config, settings, 4, 16);
  CHECK(plan.moments == 2 * size);
  CHECK(plan.gradients == size);
  CHECK(plan.weights >= size);
  CHECK(plan.panels > 0);
  CHECK(plan.workspace > 0);
  CHECK(plan.total() == plan.weights + plan.panels + plan.moments + plan.gradients + plan.states + plan.workspace);
  settings.accumulation_steps = 4;
  CHECK(plan_training(*executor, config, settings, 8, 64).gradients == 3 * size);

  StackConfig general = small_general_config(R"({"final_norm": "rmsnorm"})");
  if (!inference_only_reason(general)) {
    settings = {};
    settings.kind = OptimizerKind::sgd;
    CHECK(plan_training(*executor, general, settings, 2, 8).moments == float_bytes(Registry(general).total()));
  }
}

TEST_CASE("a plan of a model that no machine holds is a few numbers") {
  const auto executor = make_executor("cpu");
  nlohmann::json model = {{"vocab", 50000}, {"d_model", 8192}};
  for (int i = 0; i < 2; ++i) {
    model["layers"].push_back({{"kind", "transformer"}, {"n_heads", 64}, {"n_kv_heads", 8}, {"intermediate", 20000}});
  }
  const StackConfig config = stack_config_from_json(model);
  const MemoryPlan plan = plan_inference(*executor, config, {.positions = 4096});
  CHECK(plan.total() > float_bytes(Registry(config).total()));
  CHECK(plan.states >= float_bytes(2 * 2 * 4096 * 8 * 128));
}

namespace {

// A GGUF file of a llama of 7B parameters in Q4_0 that has no byte of its tensors on the disk: zeros where they would
// be. Gives the bytes of the tensors.
std::uint64_t write_sparse_llama(const Path& path) {
  constexpr std::uint64_t kLayers = 32, kWidth = 4096, kInner = 11008, kVocab = 32000;
  GgufBytes bytes;
  bytes.text("general.architecture", "llama").count("llama.vocab_size", kVocab).count("llama.context_length", 4096);
  bytes.count("llama.embedding_length", kWidth).count("llama.block_count", kLayers);
  bytes.count("llama.feed_forward_length", kInner).count("llama.attention.head_count", 32);
  bytes.count("llama.rope.dimension_count", 128).number("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  std::uint64_t end = 0;
  const auto matrix = [&](const std::string& name, std::uint64_t rows, std::uint64_t columns) {
    bytes.tensor(name + ".weight", {columns, rows}, 2, end);
    end += rows * columns / 32 * 18;
  };
  const auto norm = [&](const std::string& name) {
    bytes.tensor(name + ".weight", {kWidth}, 0, end);
    end += kWidth * sizeof(float);
  };
  matrix("token_embd", kVocab, kWidth);
  for (std::uint64_t i = 0; i < kLayers; ++i) {
    const std::string layer = "blk." + std::to_string(i) + ".";
    for (const char* name : {"attn_norm", "ffn_norm"}) norm(layer + name);
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) matrix(layer + name, kWidth, kWidth);
    for (const char* name : {"ffn_gate", "ffn_up"}) matrix(layer + name, kInner, kWidth);
    matrix(layer + "ffn_down", kWidth, kInner);
  }
  norm("output_norm");
  matrix("output", kVocab, kWidth);
  const std::string header = bytes.file();
  std::ofstream(path, std::ios::binary) << header;
  std::filesystem::resize_file(path, header.size() + end);
  return end;
}

}  // namespace

TEST_CASE("a GGUF file of more than 2^31 - 1 parameters is opened and planned") {
  TemporaryFolder folder;
  const std::uint64_t tensor_bytes = write_sparse_llama(folder / "seven.gguf");
  const OpenModel model = open_model(find_model(folder / "seven.gguf"));
  const Registry registry(model.state.config);
  CHECK(registry.total() == 6738415616);
  CHECK(registry.tensors().back().offset > 2147483647);
  const auto executor = make_executor("cpu");
  const MemoryPlan plan = plan_inference(*executor, model.state.config, {.formats = taken_formats(model)});
  CHECK(plan.weights + plan.panels >= tensor_bytes);
  CHECK(static_cast<double>(plan.weights + plan.panels) < 1.01 * static_cast<double>(tensor_bytes));
}

TEST_CASE("a stack for inference gives back the very weights it was given, whatever it made of them") {
  const StackConfig config = tied_stack();
  Generator generator(5);
  const auto reference = make_executor("reference");
  const SambaStack drawn(*reference, config, generator, SambaStack::Use::inference);
  const ArrayMap values = drawn.weights();
  for (const std::string& set : instruction_sets()) {
    const auto executor = make_executor("cpu", {.threads = 2, .instruction_set = set});
    for (const WeightFormat format : {WeightFormat::float32, WeightFormat::bfloat16, WeightFormat::int8}) {
      CAPTURE(set, weight_format_name(format));
      const WeightMap given = pack(ConstWeightMap(values), format);
      SambaStack stack(*executor, config, given, SambaStack::Use::inference);
      CHECK(stack.weight_format() == format);
      const WeightMap held_weights = stack.stored_weights();
      const ConstArrayMap held = stored_arrays(held_weights), wanted = stored_arrays(given);
      REQUIRE(held.size() == wanted.size());
      for (const auto& [name, array] : wanted) {
        CAPTURE(name);
        const ConstArray& got = held.at(name);
        REQUIRE(got.shape == array.shape);
        CHECK(std::memcmp(got.data, array.data, static_cast<std::size_t>(array.size()) * dtype_size(array.dtype)) == 0);
      }
    }
  }
}

TEST_CASE("a stack for inference has no flat buffer to write into") {
  const auto executor = make_executor("cpu");
  Generator generator(1);
  SambaStack stack(*executor, small_config(), generator, SambaStack::Use::inference);
  CHECK_THROWS_WITH(stack.mutable_device_parameters(), Contains("for inference has no flat buffer"));
  CHECK_THROWS_WITH(stack.parameters_changed(), Contains("for inference has no flat buffer"));
}

TEST_CASE("runs of host memory start at a cache line, large ones too") {
  HostMemory memory;
  for (int round = 0; round < 3; ++round) {
    void* large = memory.allocate((std::size_t{5} << 20) + 12345);
    void* small = memory.allocate(100);
    CHECK(reinterpret_cast<std::uintptr_t>(large) % 64 == 0);
    CHECK(reinterpret_cast<std::uintptr_t>(small) % 64 == 0);
    memory.fill_zero(large, (std::size_t{5} << 20) + 12345);
    memory.release(large);
    memory.release(small);
  }
}

TEST_CASE("what there is no memory for is refused with how much is needed and how much there is") {
  const std::uint64_t available = available_memory();
  REQUIRE(available > 0);
  require_memory(1, "a byte");
  for (const auto& call : {std::function<void()>([&] { require_memory(std::uint64_t{1} << 50, "a model"); }),
                           std::function<void()>([] { HostMemory().allocate(std::size_t{1} << 50); })}) {
    try {
      call();
      FAIL("nothing was thrown");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::resource);
      CHECK_THAT(error.what(), Contains("needs 1073741824.0 MiB of memory") && Contains("are available"));
    }
  }
}

TEST_CASE("the peak of resident memory rises with what is touched") {
  const std::uint64_t now = resident_bytes();  // to ask takes memory as well
  const std::uint64_t before = peak_resident_bytes();
  REQUIRE(before >= now);
  HostMemory memory;
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  void* large = memory.allocate(kBytes);
  memory.fill_zero(large, kBytes);
  CHECK(resident_bytes() >= kBytes);
  memory.release(large);
  CHECK(peak_resident_bytes() >= std::max<std::uint64_t>(before, kBytes));
}
