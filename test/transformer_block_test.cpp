// The transformer block on every executor: the laws of spec 20 sections 3 and 5, and of spec 21 section 8.4.
#include <catch2/catch.hpp>

#include "block_fixture.h"
#include "count_allocations.h"
#include "samba/blocks/transformer/transformer_block.h"

namespace samba {
namespace {

TransformerOptions sizes(Index n_heads, Index n_kv_heads, Index head_dim, Index intermediate, Index window) {
  TransformerOptions options;
  options.n_heads = n_heads;
  options.n_kv_heads = n_kv_heads;
  options.head_dim = head_dim;
  options.d_model = n_heads * head_dim;
  options.intermediate = intermediate;
  options.window = window;
  return options;
}

// Default blocks with and without a window, and blocks that use every option at least once.
std::vector<TransformerOptions> option_sets() {
  std::vector<TransformerOptions> sets = {sizes(4, 2, 6, 20, 0), sizes(2, 1, 8, 9, 3), sizes(3, 3, 10, 140, 1),
                                          sizes(1, 1, 130, 7, 5)};
  TransformerOptions gemma = sizes(2, 1, 8, 12, 4);
  gemma.norm = TransformerNorm::rmsnorm_offset;
  gemma.mlp = TransformerMlp::geglu_tanh;
  gemma.qk_norm = true;
  gemma.attn_softcap = 5.0F;
  gemma.rope_scaling = {RopeScaling::Kind::linear, 3.0F};
  TransformerOptions gpt = sizes(2, 2, 6, 10, 0);
  gpt.norm = TransformerNorm::layernorm;
  gpt.mlp = TransformerMlp::gelu;
  gpt.qkv_bias = gpt.o_bias = gpt.norm_bias = gpt.mlp_bias = true;
  gpt.rope_dim = 4;
  gpt.rope_theta = 500.0F;
  TransformerOptions other = sizes(4, 1, 4, 11, 2);
  other.mlp = TransformerMlp::gelu_tanh;
  other.norm_eps = 1e-3F;
  other.rope_scaling = {RopeScaling::Kind::llama3, 8.0F, 1.0F, 4.0F, 64};
  TransformerOptions geglu = sizes(2, 1, 4, 6, 0);
  geglu.mlp = TransformerMlp::geglu;
  geglu.mlp_bias = true;
  sets.insert(sets.end(), {gemma, gpt, other, geglu});
  return sets;
}

struct Fixture {
  Fixture(Executor& on, const TransformerOptions& options)
      : executor(on), block(on, options), weights(drawn_weights(block.weight_specs())), workspace(on.memory()) {
    std::vector<WeightView> pointers;
    for (const WeightSpec& spec : block.weight_specs()) pointers.push_back(weights.at(spec.name).floats().data());
    block.bind_weights(pointers);
  }

  Array forward(const Array& x, BlockState* state = nullptr) {
    Array y(DType::float32, x.shape());
    block.check_call(state, x.shape()[1]);
    block.forward(x.shape()[0], x.shape()[1], x.floats().data(), y.floats().data(), state, workspace, nullptr);
    return y;
  }
  std::unique_ptr<TransformerState> state(Index batch, Index max_tokens) {
    return std::unique_ptr<TransformerState>(
        static_cast<TransformerState*>(block.allocate_state(batch, max_tokens).release()));
  }
  ArrayMap gradients(const Array& x, const Array& dy) {
    ArrayMap result;
    std::vector<float*> pointers;
    for (const WeightSpec& spec : block.weight_specs()) {
      pointers.push_back(result.emplace(spec.name, Array(DType::float32, spec.shape)).first->second.floats().data());
    }
    Array& dx = result.emplace("x", Array(DType::float32, x.shape())).first->second;
    block.backward(x.shape()[0], x.shape()[1], x.floats().data(), dy.floats().data(), dx.floats().data(), pointers,
                   workspace, nullptr);
    return result;
  }

  Executor& executor;
  TransformerBlock block;
  ArrayMap weights;
  Workspace workspace;
};

void check_same(const ArrayMap& got, const ArrayMap& want) {
  REQUIRE(got.size() == want.size());
  for (const auto& [name, array] : want) {
    INFO(name);
    CHECK(bits_equal(got.at(name).floats(), array.floats()));
  }
}

}  // namespace

TEST_CASE("any split into chunks and single tokens gives the bits of the whole prefill") {
  const std::vector<std::vector<Index>> splits = {
      {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {5, 8}, {1, 12}, {3, 1, 9}, {12, 1}, {2, 2, 2, 7}};
  for (const auto& executor : every_executor()) {
    for (const TransformerOptions& options : option_sets()) {
      Fixture fixture(*executor, options);
      const Array x = drawn(50, {2, 13, options.d_model});
      const Array whole = fixture.forward(x);
      for (const std::vector<Index>& split : splits) {
        const auto state = fixture.state(2, 13);
        Index at = 0;
        for (const Index chunk : split) {
          INFO(executor->instruction_set() << ", window " << options.window << ", chunk of " << chunk << " at " << at);
          const Array y = fixture.forward(positions(x, at, at + chunk), state.get());
          at += chunk;
          CHECK(bits_equal(y.floats(), positions(whole, at - chunk, at).floats()));
          CHECK(state->cached_tokens() == at);
        }
      }
    }
  }
}

TEST_CASE("the executors agree on outputs, caches and gradients") {
  const auto executors = every_executor();
  for (const TransformerOptions& options : option_sets()) {
    Fixture reference(*executors[0], options);
    const Array x = drawn(51, {3, 45, options.d_model});
    const Array dy = drawn(52, {3, 45, options.d_model});
    const auto state = reference.state(3, 60);
    const Array y = reference.forward(x, state.get());
    const ArrayMap gradients = reference.gradients(x, dy);
    for (std::size_t i = 1; i < executors.size(); ++i) {
      INFO(executors[i]->instruction_set());
      Fixture other(*executors[i], options);
      const auto other_state = other.state(3, 60);
      CHECK(bits_equal(other.forward(x, other_state.get()).floats(), y.floats()));
      check_same(other_state->pieces(), state->pieces());
      check_same(other.gradients(x, dy), gradients);
    }
  }
}

TEST_CASE("a batch row has the bits it has alone") {
  const auto executor = make_executor("cpu", {.threads = 3, .instruction_set = ""});
  for (const TransformerOptions& options : option_sets()) {
    Fixture fixture(*executor, options);
    const Array x = drawn(53, {4, 9, options.d_model});
    const Array y = fixture.forward(x);
    for (Index row = 0; row < 4; ++row) {
      CHECK(bits_equal(fixture.forward(batch_row(x, row)).floats(), batch_row(y, row).floats()));
    }
  }
}

TEST_CASE("the exposed cache is packed at stride cached_tokens and +0.0 beyond") {
  const auto executor = make_executor("reference");
  Fixture fixture(*executor, sizes(4, 2, 6, 20, 0));
  const auto state = fixture.state(2, 7);
  fixture.forward(drawn(54, {2, 3, 24}), state.get());
  const Array cache = state->pieces().at("k_cache");
  REQUIRE(cache.shape() == Shape{2 * 2 * 7 * 6});
  const std::size_t used = 2 * 2 * 3 * 6;
  CHECK(bits_equal(cache.floats().first(used), state->held_keys().floats()));
  for (const float value : cache.floats().subspan(used)) CHECK(to_bits(value) == 0);
  CHECK(state->held_keys().shape() == Shape{2, 2, 3, 6});

  SECTION("an exported state continues in another one") {
    const auto copy = fixture.state(2, 7);
    copy->set(views(state->pieces()), state->counters());
    const Array x = drawn(55, {2, 2, 24});
    CHECK(bits_equal(fixture.forward(x, copy.get()).floats(), fixture.forward(x, state.get()).floats()));
    check_same(copy->pieces(), state->pieces());
  }
  SECTION("a clone is a state of its own") {
    const auto copy = state->clone();
    fixture.forward(drawn(55, {2, 1, 24}), state.get());
    CHECK(copy->counters().at("cached_tokens") == 3);
    CHECK(bits_equal(copy->pieces().at("k_cache").floats(), cache.floats()));
  }
  SECTION("reset makes it the empty sequence") {
    state->reset();
    CHECK(state->cached_tokens() == 0);
    const Array values = state->pieces().at("v_cache");
    for (const float value : values.floats()) CHECK(to_bits(value) == 0);
  }
}

TEST_CASE("under a window slot p mod W holds position p, and slots not written keep their bytes") {
  const auto executor = make_executor("reference");
  Fixture fixture(*executor, sizes(2, 1, 4, 8, 5));
  const auto state = fixture.state(1, 40);
  const Array mark = drawn(56, {20});
  state->set({{"k_cache", mark}, {"v_cache", mark}}, {});
  fixture.forward(drawn(57, {1, 2, 8}), state.get());
  const Array ring = state->pieces().at("v_cache");
  CHECK(bits_equal(ring.floats().subspan(8), mark.floats().subspan(8)));
  CHECK(differ(ring.floats().first(8), mark.floats().first(8)));

  fixture.forward(drawn(58, {1, 6, 8}), state.get());  // positions 2 to 7: longer than the ring
  const Array wrapped = state->pieces().at("v_cache");
  const Array held = state->held_values();  // positions 3 to 7
  REQUIRE(held.shape() == Shape{1, 1, 5, 4});
  for (std::size_t p = 3; p < 8; ++p) {
    CHECK(bits_equal(wrapped.floats().subspan(p % 5 * 4, 4), held.floats().subspan((p - 3) * 4, 4)));
  }
}

TEST_CASE("kept activations give the gradients of a recomputed forward") {
  for (const auto& executor : every_executor()) {
    Fixture fixture(*executor, sizes(4, 2, 6, 20, 3));
    const Array x = drawn(59, {2, 11, 24});
    const Array dy = drawn(60, {2, 11, 24});
    const ArrayMap want = fixture.gradients(x, dy);
    DeviceArray<float> store(executor->memory(), fixture.block.kept_floats(22));
    Array y(DType::float32, x.shape());
    fixture.block.forward_keeping(2, 11, x.floats().data(), y.floats().data(), store.data(), fixture.workspace);
    CHECK(bits_equal(y.floats(), fixture.forward(x).floats()));
    ArrayMap got;
    std::vector<float*> pointers;
    for (const WeightSpec& spec : fixture.block.weight_specs()) {
      pointers.push_back(got.emplace(spec.name, Array(DType::float32, spec.shape)).first->second.floats().data());
    }
    Array& dx = got.emplace("x", dy).first->second;  // the gradient of x may replace the upstream gradient
    fixture.block.backward_from(2, 11, x.floats().data(), store.data(), dx.floats().data(), dx.floats().data(),
                                pointers, fixture.workspace, nullptr);
    check_same(got, want);
  }
}

TEST_CASE("edited weights are seen after weights_changed") {
  const auto executor = make_executor("cpu");
  Fixture fixture(*executor, sizes(2, 1, 4, 8, 0));
  const Array x = drawn(61, {1, 4, 8});
  const Array before = fixture.forward(x);
  for (auto& [name, array] : fixture.weights) {
    for (float& value : array.floats()) value *= 2.0F;
  }
  fixture.block.weights_changed();
  Fixture fresh(*executor, sizes(2, 1, 4, 8, 0));
  for (auto& [name, array] : fresh.weights) array = fixture.weights.at(name);
  std::vector<WeightView> pointers;
  for (const WeightSpec& spec : fresh.block.weight_specs())
    pointers.push_back(fresh.weights.at(spec.name).floats().data());
  fresh.block.bind_weights(pointers);
  CHECK(bits_equal(fixture.forward(x).floats(), fresh.forward(x).floats()));
  CHECK(differ(fixture.forward(x).floats(), before.floats()));
}

TEST_CASE("on the cpu a decode step allocates nothing once the lengths have been seen") {
  for (const std::string& set : instruction_sets()) {  // the reference may allocate
    INFO(set);
    // One thread: with more, which of them first needs scratch of its own is a matter of scheduling.
    const auto executor = make_executor("cpu", {.threads = 1, .instruction_set = set});
    for (const Index window : {0, 4}) {
      Fixture fixture(*executor, sizes(4, 2, 6, 20, window));
      const auto state = fixture.state(2, 40);
      const Array token = drawn(62, {2, 1, 24});
      Array y(DType::float32, token.shape());
      const auto step = [&] {
        fixture.block.check_call(state.get(), 1);
        fixture.block.forward(2, 1, token.floats().data(), y.floats().data(), state.get(), fixture.workspace, nullptr);
      };
      for (int i = 0; i < 30; ++i) step();
      state->reset();
      const std::size_t before = allocations;
      for (int i = 0; i < 30; ++i) step();
      const std::size_t made = allocations - before;
      CHECK(made == 0);
    }
  }
}

TEST_CASE("on the cpu a second training pass of a shape allocates nothing") {
  for (const std::string& set : instruction_sets()) {
    INFO(set);
    const auto executor = make_executor("cpu", {.threads = 1, .instruction_set = set});
    Fixture fixture(*executor, sizes(4, 2, 6, 20, 0));
    const Array x = drawn(63, {2, 30, 24});
    ArrayMap gradients = fixture.gradients(x, x);
    std::vector<float*> pointers;
    for (const WeightSpec& spec : fixture.block.weight_specs()) {
      pointers.push_back(gradients.at(spec.name).floats().data());
    }
    const std::size_t before = allocations;
    fixture.block.backward(2, 30, x.floats().data(), x.floats().data(), gradients.at("x").floats().data(), pointers,
                           fixture.workspace, nullptr);
    const std::size_t made = allocations - before;
    CHECK(made == 0);
  }
}

TEST_CASE("a call is refused for its positions, then its angles, then its capacity") {
  const auto executor = make_executor("reference");
  TransformerOptions options = sizes(2, 1, 4, 8, 0);
  options.max_positions = 6;
  Fixture fixture(*executor, options);
  const auto state = fixture.state(1, 4);
  const auto words = [&](Index length) { return refusal([&] { fixture.block.check_call(state.get(), length); }); };
  CHECK(words(4).empty());
  CHECK(words(5) == "value: the call needs 5 cache slots, max_tokens is 4");
  CHECK(words(7) == "value: the last position of the call, 6, is not below max_positions 6");

  options.max_positions = 100000;
  Fixture far(*executor, options);
  CHECK(refusal([&] { far.block.check_call(nullptr, 8192); }).empty());
  const std::string angle = refusal([&] { far.block.check_call(nullptr, 8193); });
  CHECK(angle.find("column 0 at position 8192") != std::string::npos);
  CHECK(angle.find("8192.0") != std::string::npos);
}

}  // namespace samba
