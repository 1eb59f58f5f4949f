// Decode steps as launch graphs, on the host adapter: what a graph was made with is renewed for each step, or an older
// token would show; steps that are unlike, interrupted or refused by the driver run launch by launch with the same
// bits.
#include <catch2/catch.hpp>

#include "bits.h"
#include "error_of.h"
#include "general_stack.h"
#include "samba/backends/gpu/host/context.h"
#include "samba/kernels/step_graph.h"
#include "small_stack.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;
using gpu_host::step_counts;

std::unique_ptr<Executor> gpu(const std::string& set = "warp32") { return make_executor("gpu-host", {2, set}); }
std::unique_ptr<Executor> cpu() { return make_executor("cpu", {1, ""}); }

// Every kind of block, a ring of 5 positions among them.
StackConfig every_block() {
  return small_general_config(R"({"layers": [
    {"kind": "transformer", "n_heads": 2, "head_dim": 24, "n_kv_heads": 1, "intermediate": 40, "window": 5,
     "norm": "rmsnorm_offset", "qkv_bias": true, "o_bias": true, "mlp_bias": true, "qk_norm": true},
    {"kind": "mamba1"}, {"kind": "mamba2"}, {"kind": "mamba3"},
    {"kind": "transformer", "n_heads": 4, "intermediate": 24, "norm": "layernorm", "norm_bias": true, "mlp": "gelu"},
    {"kind": "transformer", "n_heads": 2, "intermediate": 32, "numeric_profile": "fixed15_v1"}]})");
}

StackConfig attention_alone() {
  return small_general_config(R"({"layers": [{"kind": "transformer", "n_heads": 4, "intermediate": 24},
                                             {"kind": "transformer", "n_heads": 4, "intermediate": 24}]})");
}

struct Model {
  Model(Executor& executor, const StackConfig& config)
      : generator(5), stack(executor, config, generator, SambaStack::Use::inference) {}
  Generator generator;
  SambaStack stack;
};

std::vector<std::int32_t> ids_at(Index batch, Index position, Index vocab) {
  std::vector<std::int32_t> ids;
  for (Index row = 0; row < batch; ++row) {
    ids.push_back(static_cast<std::int32_t>((position * position + 3 * row) % vocab));
  }
  return ids;
}

// Logits of the positions [first, end), one step each, behind a prompt of `first` tokens where the state is empty.
std::vector<float> decode(SambaStack& stack, SambaState& state, Index first, Index end) {
  const Index batch = state.batch_size(), vocab = stack.config().vocab;
  std::vector<float> all, logits(static_cast<std::size_t>(batch * vocab));
  if (state.tokens() == 0 && first > 0) {
    std::vector<std::int32_t> prompt;
    for (Index i = 0; i < batch * first; ++i) prompt.push_back(static_cast<std::int32_t>(i * i % vocab));
    stack.prefill(prompt, first, state, logits);
  }
  for (Index position = first; position < end; ++position) {
    stack.step(ids_at(batch, position, vocab), state, logits);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

std::vector<float> decode(Executor& executor, const StackConfig& config, Index batch, Index first, Index end) {
  Model model(executor, config);
  const auto state = model.stack.allocate_state(batch, end);
  return decode(model.stack, *state, first, end);
}

// The graphs of the host adapter keep stale launches while it lives.
struct Stale {
  Stale() { gpu_host::keep_stale_launches(true); }
  ~Stale() { gpu_host::keep_stale_launches(false); }
};

}  // namespace

TEST_CASE("steps of every kind of block are replayed with the cpu's bits, across the end of chunks and of a ring") {
  // Mamba-3 closes a chunk at 256 and Mamba-2 too; the ring has gone round.
  const std::pair<Index, const char*> kinds[] = {{1, "warp32"}, {2, "warp64-seed3"}, {1, "warp32-graphs0"}};
  for (const auto& [batch, set] : kinds) {
    INFO(set);
    const auto device = gpu(set);
    CHECK(bits_equal(decode(*device, every_block(), batch, 252, 261), decode(*cpu(), every_block(), batch, 252, 261)));
    const StepCounts counts = step_counts(*device);
    CHECK(counts.replays + counts.plain == 9);
    if (counts.refused > 0) continue;
    // The first step runs plainly, and so do the one that closes the chunks and the first behind it.
    CHECK(counts.replays >= 5);
    CHECK(counts.graphs >= 1);
    CHECK(counts.changes > 0);
  }
}

TEST_CASE("chunks of Mamba-3 that close again and again are a graph of their own") {
  const StackConfig config = small_general_config(R"({"layers": [{"kind": "mamba3"}]})");
  const auto device = gpu();
  CHECK(bits_equal(decode(*device, config, 1, 0, 200), decode(*cpu(), config, 1, 0, 200)));
  const StepCounts counts = step_counts(*device);
  CHECK(counts.graphs <= 4);
  CHECK(counts.plain <= 4);  // one each
  CHECK(counts.replays + counts.plain == 200);
}

TEST_CASE("rows of several states in one step are replayed, each at its place") {
  const auto run = [](Executor& executor) {
    Model model(executor, every_block());
    const Index vocab = model.stack.config().vocab;
    const auto first = model.stack.allocate_state(1, 300), second = model.stack.allocate_state(1, 300);
    const auto third = model.stack.allocate_state(1, 300);
    decode(model.stack, *first, 60, 61);
    decode(model.stack, *second, 3, 4);
    decode(model.stack, *third, 17, 18);
    SambaState* const states[] = {first.get(), second.get(), third.get()};
    std::vector<float> all, rows(static_cast<std::size_t>(3 * vocab));
    for (Index position = 0; position < 8; ++position) {  // the first crosses a chunk of Mamba-3
      model.stack.step_rows(ids_at(3, position, vocab), states, rows);
      all.insert(all.end(), rows.begin(), rows.end());
      if (position != 5) continue;
      rows.resize(static_cast<std::size_t>(2 * vocab));  // the second leaves and comes back
      SambaState* const others[] = {third.get(), first.get()};
      for (Index more = 0; more < 3; ++more) model.stack.step_rows(ids_at(2, more, vocab), others, rows);
      all.insert(all.end(), rows.begin(), rows.end());
      rows.resize(static_cast<std::size_t>(3 * vocab));
    }
    return all;
  };
  const std::vector<float> want = run(*cpu());
  const auto device = gpu();
  CHECK(bits_equal(run(*device), want));
  CHECK(step_counts(*device).replays >= 4);
}

TEST_CASE("graphs go on with a state that was reset, another state, another stack and more workspace") {
  const auto run = [](Executor& executor) {
    Model model(executor, small_general_config(R"({"vocab": 9000})")), other(executor, attention_alone());
    const auto state = model.stack.allocate_state(1, 40), second = model.stack.allocate_state(1, 50);
    const auto many = model.stack.allocate_state(40, 40), elsewhere = other.stack.allocate_state(2, 40);
    std::vector<float> all;
    const auto take = [&](const std::vector<float>& logits) { all.insert(all.end(), logits.begin(), logits.end()); };
    take(decode(model.stack, *state, 3, 8));
    state->reset();
    take(decode(model.stack, *state, 2, 7));
    take(decode(model.stack, *second, 4, 7));
    take(decode(other.stack, *elsewhere, 1, 5));
    const std::size_t before = model.stack.workspace_bytes();
    take(decode(model.stack, *many, 0, 3));  // its logits alone are more than a first block of workspace
    CHECK(before < std::size_t{1} << 20);
    CHECK(model.stack.workspace_bytes() > std::size_t{1} << 20);
    take(decode(model.stack, *second, 7, 10));
    take(decode(other.stack, *elsewhere, 5, 9));
    const auto copy = state->clone();
    take(decode(model.stack, *copy, 7, 10));
    take(decode(model.stack, *state, 7, 10));
    return all;
  };
  const auto device = gpu();
  CHECK(bits_equal(run(*device), run(*cpu())));
  CHECK(step_counts(*device).replays > 20);
}

TEST_CASE("a graph that kept the arguments of an earlier step gives other bits") {
  for (const StackConfig& config : {every_block(), attention_alone()}) {
    const std::vector<float> want = decode(*cpu(), config, 1, 3, 9);
    const auto device = gpu();
    {
      const Stale stale;
      CHECK(!bits_equal(decode(*device, config, 1, 3, 9), want));
    }
    CHECK(step_counts(*device).replays >= 4);
    CHECK(bits_equal(decode(*gpu(), config, 1, 3, 9), want));
  }
}

TEST_CASE("a driver that refuses a graph, at any call, costs nothing but the graph") {
  const std::vector<float> want = decode(*cpu(), attention_alone(), 2, 3, 9);
  for (const int calls : {0, 1, 2, 7, 20}) {  // making it, launching it, giving it new arguments
    INFO(calls << " calls");
    const auto device = gpu("warp32-graphs" + std::to_string(calls));
    CHECK(bits_equal(decode(*device, attention_alone(), 2, 3, 9), want));
    const StepCounts counts = step_counts(*device);
    CHECK(counts.refused == 1);  // and then no more are asked for
    CHECK(counts.replays + counts.plain == 6);
  }
}

TEST_CASE("values that are not finite are refused in a kept step as on the cpu, and the state can be reset") {
  const auto run = [](Executor& executor) {
    StackConfig config = attention_alone();
    config.embedding_scale = 5.5F;
    Model model(executor, config);
    ArrayMap weights = model.stack.weights();
    std::span<float> embedding = weights.at("embed.weight").floats();
    std::fill_n(embedding.begin() + 32 * 7, 32, 3e38F);
    ConstWeightMap views;
    for (const auto& [name, array] : weights) views.emplace(name, array.view());
    model.stack.load_weights(views);
    const auto state = model.stack.allocate_state(1, 40);
    std::vector<float> all = decode(model.stack, *state, 0, 3);
    std::vector<float> logits(40);
    const std::int32_t id = 7;
    const std::string refused = error_of([&] { model.stack.step({&id, 1}, *state, logits); }).what();
    CHECK_THAT(refused, Contains("non-finite") && Contains("at flat index"));
    CHECK_THAT(error_of([&] { model.stack.step({&id, 1}, *state, logits); }).what(), Contains("not usable"));
    state->reset();
    const std::vector<float> again = decode(model.stack, *state, 0, 3);
    CHECK(bits_equal(again, all));
    return refused;
  };
  CHECK(run(*gpu()) == run(*cpu()));
}

TEST_CASE("a launch that fails in a replayed step is told, and the next state starts anew") {
  const auto whole = gpu();
  const StackConfig config = attention_alone();
  decode(*whole, config, 1, 3, 9);
  const auto device = gpu("warp32-launches200");
  Model model(*device, config);
  const auto state = model.stack.allocate_state(1, 40);
  CHECK_THAT(error_of([&] { decode(model.stack, *state, 3, 39); }).what(),
             Contains("device gpu-host: launching a kernel"));
  CHECK(step_counts(*device).replays > 0);
  const std::int32_t id = 1;
  std::vector<float> logits(40);
  CHECK_THAT(error_of([&] { model.stack.step({&id, 1}, *state, logits); }).what(), Contains("not usable"));
}

TEST_CASE("a kept step runs in its order where the host steps in, and memory stays until it has run") {
  const auto device = gpu();
  auto& graph = dynamic_cast<StepGraph&>(*device);
  Memory& memory = device->memory();
  const std::vector<float> values = {1.0F, 2.0F, 3.0F};
  for (int round = 0; round < 4; ++round) {
    DeviceArray<float> x(memory, 3), sum(memory, 3);
    x.upload(values.data());
    graph.begin_step();
    {
      DeviceArray<float> middle(memory, 3);
      device->elementwise().add(3, x.data(), x.data(), middle.data());
      memory.copy(sum.data(), middle.data(), 3 * sizeof(float));
    }
    DeviceArray<float> later(memory, 3);  // not where `middle` is: that is read yet
    later.zero();
    device->elementwise().add(3, sum.data(), later.data(), sum.data());
    std::vector<float> seen(3);
    if (round < 2) {
      sum.download(seen.data());
      CHECK(seen == std::vector<float>{2.0F, 4.0F, 6.0F});
    }
    device->elementwise().add(3, sum.data(), x.data(), sum.data());
    x.upload(seen.data());  // behind the sum that reads it
    graph.run_step();
    sum.download(seen.data());
    CHECK(seen == std::vector<float>{3.0F, 6.0F, 9.0F});
  }
  CHECK(step_counts(*device).plain == 4);  // interrupted ones make no graphs

  DeviceArray<float> x(memory, 3), y(memory, 3);
  x.upload(values.data());
  y.zero();
  graph.begin_step();
  device->elementwise().add(3, x.data(), x.data(), y.data());
  graph.drop_step();
  std::vector<float> seen(3);
  y.download(seen.data());
  CHECK(seen == std::vector<float>(3));
}

TEST_CASE("graphs of more kinds of steps than are kept make room for each other") {
  const auto device = gpu();
  auto& graph = dynamic_cast<StepGraph&>(*device);
  DeviceArray<float> x(device->memory(), 4), y(device->memory(), 4);
  const std::vector<float> ones(4, 1.0F);
  for (int round = 0; round < 3; ++round) {
    for (int adds = 1; adds <= 12; ++adds) {
      x.upload(ones.data());
      y.upload(ones.data());
      graph.begin_step();
      for (int i = 0; i < adds; ++i) device->elementwise().add(4, x.data(), y.data(), x.data());
      graph.run_step();
      std::vector<float> seen(4);
      x.download(seen.data());
      CHECK(seen == std::vector<float>(4, static_cast<float>(adds + 1)));
    }
  }
  const StepCounts counts = step_counts(*device);
  CHECK(counts.plain == 12);
  CHECK(counts.graphs == 24);
}

}  // namespace samba
