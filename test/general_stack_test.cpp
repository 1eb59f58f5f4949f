// Any stack of blocks: initial values, the same bits on every route, and what scale, softcap and the final norms do.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "bits.h"
#include "general_stack.h"
#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/philox.h"

namespace samba {
namespace {

Array random_ids(Index rows, Index length, Index vocab, std::uint64_t seed) {
  Array ids(DType::int32, {rows, length});
  auto values = ids.values<std::int32_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<std::int32_t>(stream_word(seed, 0, i) % static_cast<std::uint64_t>(vocab));
  }
  return ids;
}

// ids[rows, first .. first + count)
Array columns(const Array& ids, Index first, Index count) {
  const Index rows = ids.shape()[0], length = ids.shape()[1];
  Array part(DType::int32, {rows, count});
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < count; ++c) {
      part.values<std::int32_t>()[static_cast<std::size_t>(r * count + c)] =
          ids.values<std::int32_t>()[static_cast<std::size_t>(r * length + first + c)];
    }
  }
  return part;
}

std::unique_ptr<SambaStack> make_stack(Executor& executor, const StackConfig& config, std::uint64_t seed = 5) {
  Generator generator(seed);
  return std::make_unique<SambaStack>(executor, config, generator, widest_use(config));
}

TEST_CASE("Initial values are those of the decisions, one stream a drawn tensor in registry order") {
  const auto executor = make_executor("cpu", {1, ""});
  const StackConfig config = small_general_config(R"({"final_norm": "rmsnorm_offset", "tie_embeddings": false})");
  Generator generator(77);
  const SambaStack stack(*executor, config, generator, widest_use(config));
  const ArrayMap weights = stack.weights();
  std::uint32_t stream = 0;
  // Element i of a draw is unit(word i of (seed, stream)), scaled: F(low + F(unit * F(high - low))).
  const auto check_uniform = [&](const std::string& name, float low, float high) {
    INFO(name);
    Generator other(GeneratorState{77, stream++});
    std::vector<float> wanted(weights.at(name).floats().size());
    other.uniform(wanted, static_cast<double>(low), static_cast<double>(high));
    CHECK(bits_equal(weights.at(name).floats(), wanted));
    const float unit = static_cast<float>(stream_word(77, stream - 1, 0) >> 8U) * 0x1p-24F;
    CHECK(wanted[0] == fma(unit, sub(high, low), low));
  };
  const auto check_projection = [&](const std::string& name) {
    const double bound = 1.0 / std::sqrt(static_cast<double>(weights.at(name).shape()[1]));
    check_uniform(name, -kaiming_uniform_bound(weights.at(name).shape()[1]),
                  kaiming_uniform_bound(weights.at(name).shape()[1]));
    CHECK(static_cast<double>(kaiming_uniform_bound(weights.at(name).shape()[1])) == Approx(bound));
  };
  const auto check_normal = [&](const std::string& name) {
    INFO(name);
    Generator other(GeneratorState{77, stream++});
    std::vector<float> wanted(weights.at(name).floats().size());
    other.normal(wanted, 0.0, static_cast<double>(0.02F));
    CHECK(bits_equal(weights.at(name).floats(), wanted));
  };
  const auto check_constant = [&](const std::string& name, float value) {
    INFO(name);
    const std::vector<float> wanted(weights.at(name).floats().size(), value);
    CHECK(bits_equal(weights.at(name).floats(), wanted));
  };
  check_normal("embed.weight");
  // layers.0: a transformer with offset norms and every bias but those of its norms
  check_constant("layers.0.input_layernorm.weight", 0.0F);
  check_constant("layers.0.post_attention_layernorm.weight", 0.0F);
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}) {
    check_projection("layers.0." + std::string(name) + ".weight");
  }
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"}) {
    check_constant("layers.0." + std::string(name) + ".bias", 0.0F);
  }
  check_constant("layers.0.q_norm.weight", 0.0F);
  check_constant("layers.0.k_norm.weight", 0.0F);
  // layers.1: mamba1
  check_constant("layers.1.norm.weight", 1.0F);
  check_projection("layers.1.in_proj.weight");
  check_uniform("layers.1.conv1d.weight", -0.5F, 0.5F);
  check_uniform("layers.1.conv1d.bias", -0.5F, 0.5F);
  check_projection("layers.1.x_proj.weight");
  check_projection("layers.1.dt_proj.weight");
  check_uniform("layers.1.dt_proj.bias", -4.0F, -2.0F);
  const Array& a_log = weights.at("layers.1.A_log");
  for (Index i = 0; i < a_log.size(); ++i) {
    const float got = a_log.floats()[static_cast<std::size_t>(i)];
    const auto n = static_cast<float>(i % 16 + 1);
    if (got != elementary::log(n)) FAIL("A_log[" << i << "] is " << got);
    if (std::abs(static_cast<double>(got) - std::log(static_cast<double>(n))) > 1e-6) FAIL("not a logarithm");
  }
  check_constant("layers.1.D", 1.0F);
  check_projection("layers.1.out_proj.weight");
  // layers.2: mamba2
  check_constant("layers.2.block_norm.weight", 1.0F);
  check_projection("layers.2.in_proj.weight");
  check_uniform("layers.2.conv1d.weight", -0.5F, 0.5F);
  check_uniform("layers.2.conv1d.bias", -0.5F, 0.5F);
  check_uniform("layers.2.dt_bias", -4.0F, -2.0F);
  check_uniform("layers.2.A_log", 0.0F, 2.7725887F);
  check_constant("layers.2.D", 1.0F);
  check_constant("layers.2.norm.weight", 1.0F);
  check_projection("layers.2.out_proj.weight");
  // layers.3: mamba3
  check_projection("layers.3.in_proj.weight");
  check_uniform("layers.3.dt_bias", -4.0F, -2.0F);
  check_constant("layers.3.B_bias", 1.0F);
  check_projection("layers.3.out_proj.weight");
  // layers.4: a transformer with layer norms and their biases
  check_constant("layers.4.input_layernorm.weight", 1.0F);
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"}) {
    check_projection("layers.4." + std::string(name) + ".weight");
  }
  check_constant("layers.4.input_layernorm.bias", 0.0F);
  check_constant("layers.4.post_attention_layernorm.bias", 0.0F);
  check_constant("norm_f.weight", 0.0F);
  check_normal("lm_head.weight");
  CHECK(generator.counter() == stream);

  const StackConfig centred = small_general_config(R"({"final_norm": "layernorm", "final_norm_bias": true})");
  const ArrayMap others = make_stack(*executor, centred)->weights();
  CHECK(others.at("norm_f.weight").floats()[31] == 1.0F);
  CHECK(others.at("norm_f.bias").floats()[31] == 0.0F);
}

TEST_CASE("Layers as objects give the bits of the SambaStack they restate") {
  const auto executor = make_executor("cpu", {1, ""});
  const StackConfig named = stack_config_from_json(nlohmann::json::parse(
      R"({"vocab": 40, "d_model": 32, "layers": ["mamba3", "attention"], "n_heads": 4, "n_kv_heads": 2,
          "intermediate": 40, "dropout": 0.25})"));
  const StackConfig objects = stack_config_from_json(nlohmann::json::parse(
      R"({"vocab": 40, "d_model": 32, "dropout": 0.25, "layers": [{"kind": "mamba3"},
          {"kind": "transformer", "n_heads": 4, "n_kv_heads": 2, "intermediate": 40}]})"));
  const auto a = make_stack(*executor, named), b = make_stack(*executor, objects);
  CHECK(a->parameters_sha256() == b->parameters_sha256());
  const Array inputs = random_ids(2, 9, 40, 1), targets = random_ids(2, 9, 40, 2);
  CHECK(bits_equal(a->forward(inputs).floats(), b->forward(inputs).floats()));
  GradientOptions options;
  options.dropout = DropoutStream{3, 4};
  const auto of_a = a->loss_and_grads(inputs, targets, options), of_b = b->loss_and_grads(inputs, targets, options);
  CHECK(same_bits(of_a.loss, of_b.loss));
  CHECK(bits_equal(of_a.gradients.floats(), of_b.gradients.floats()));
}

TEST_CASE("Every shipped stack gives one set of bits: executors, threads, chunks, single tokens, ragged rows") {
  for (const auto& [name, config] : shipped_general_stacks()) {
    INFO(name);
    const auto one = make_executor("cpu", {1, ""}), three = make_executor("cpu", {3, ""}),
               reference = make_executor("reference");
    const auto stack = make_stack(*one, config);
    const Array ids = random_ids(2, 30, config.vocab, 9);
    const Array logits = stack->forward(ids);
    CHECK(bits_equal(make_stack(*three, config)->forward(ids).floats(), logits.floats()));
    CHECK(bits_equal(make_stack(*reference, config)->forward(columns(ids, 0, 12)).floats(),
                     stack->forward(columns(ids, 0, 12)).floats()));

    const auto state = stack->allocate_state(2, 30);
    const auto vocab = static_cast<std::size_t>(config.vocab);
    const auto row_at = [&](Index row, Index position) {
      return logits.floats().subspan(static_cast<std::size_t>(row * 30 + position) * vocab, vocab);
    };
    const Array chunk = stack->forward(columns(ids, 0, 19), *state);
    CHECK(bits_equal(chunk.floats().subspan(18 * vocab, vocab), row_at(0, 18)));
    for (Index at = 19; at < 30; ++at) {
      const Array step = stack->step(columns(ids, at, 1), *state);
      for (Index row = 0; row < 2; ++row) {
        CHECK(bits_equal(step.floats().subspan(static_cast<std::size_t>(row) * vocab, vocab), row_at(row, at)));
      }
    }
    state->reset();
    std::vector<float> last(2 * vocab);
    const Array twenty = columns(ids, 0, 20);
    stack->prefill(twenty.values<std::int32_t>(), 20, *state, last);
    CHECK(bits_equal(std::span(last).subspan(vocab, vocab), row_at(1, 19)));

    const Index lengths[] = {30, 7};
    const Array ragged = stack->forward(ids, lengths);
    CHECK(bits_equal(ragged.floats().subspan((30 + 6) * vocab, vocab), row_at(1, 6)));
    CHECK(ragged.floats()[(30 + 7) * vocab] == 0.0F);
  }
}

TEST_CASE("Gradients of every stack that has them are the same bits on the reference and on three threads") {
  int found = 0;
  for (const auto& [name, config] : shipped_general_stacks()) {
    if (widest_use(config) == SambaStack::Use::inference) continue;
    INFO(name);
    ++found;
    const auto one = make_executor("cpu", {1, ""}), three = make_executor("cpu", {3, ""}),
               reference = make_executor("reference");
    const Array inputs = random_ids(2, 11, config.vocab, 21), targets = random_ids(2, 11, config.vocab, 22);
    const auto got = make_stack(*one, config)->loss_and_grads(inputs, targets);
    const auto threads = make_stack(*three, config)->loss_and_grads(inputs, targets);
    const auto scalar = make_stack(*reference, config)->loss_and_grads(inputs, targets);
    CHECK(same_bits(got.loss, threads.loss));
    CHECK(bits_equal(threads.gradients.floats(), got.gradients.floats()));
    CHECK(same_bits(got.loss, scalar.loss));
    CHECK(bits_equal(scalar.gradients.floats(), got.gradients.floats()));
  }
  CHECK(found == 7);
}

TEST_CASE("A stack without a gradient is for inference: built as such, refused by loss and training") {
  using Catch::Matchers::Contains;
  const auto executor = make_executor("cpu", {1, ""});
  const StackConfig config = small_general_config(R"({"layers": [
      {"kind": "mamba1"}, {"kind": "transformer", "n_heads": 2, "intermediate": 40, "numeric_profile": "fixed15_v1"}]})");
  Generator generator(1);
  CHECK_THROWS_WITH(SambaStack(*executor, config, generator),
                    Contains("/layers/1/numeric_profile") && Contains("inference"));
  const auto stack = make_stack(*executor, config);
  const Array ids = random_ids(1, 4, config.vocab, 1);
  CHECK_THROWS_WITH(stack->loss(ids, ids), Contains("inference is forward only"));
}

}  // namespace
}  // namespace samba
