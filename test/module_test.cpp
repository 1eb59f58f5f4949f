// The checked interface to the blocks: spec 20 sections 5 to 9, spec 40 sections 6 to 9. Every recorded refusal and
// session is in test/golden; here is what those files leave open, and what they cannot say.
#include <catch2/catch.hpp>
#include <functional>
#include <nlohmann/json.hpp>

#include "block_fixture.h"
#include "samba/blocks/mamba3/mamba3_block.h"
#include "samba/blocks/module.h"
#include "samba/blocks/transformer/transformer_options.h"

namespace samba {
namespace {

using nlohmann::json;

struct Kind {
  std::string name;
  json options;
  Index d_model;
};

const Kind kTransformer = {"transformer", {{"n_heads", 2}, {"n_kv_heads", 1}}, 12};
const Kind kWindow = {"transformer", {{"n_heads", 2}, {"n_kv_heads", 1}, {"window", 3}}, 12};
const Kind kMamba3 = {"mamba3", json::object(), 32};

ArrayMap weights_of(const Kind& kind) {
  if (kind.name == "mamba3") return drawn_weights(Mamba3Block::make_weight_specs(kind.d_model));
  TransformerOptions options;
  options.d_model = kind.d_model;
  options.n_heads = 2;
  options.n_kv_heads = 1;
  options.head_dim = kind.d_model / 2;
  options.intermediate = 10;
  return drawn_weights(options.weight_specs());
}

Executor& reference() {
  static const std::unique_ptr<Executor> executor = make_executor("reference");
  return *executor;
}

BlockModule make(const Kind& kind, Executor& executor = reference()) {
  return BlockModule(executor, kind.name, kind.options, views(weights_of(kind)));
}

bool contains(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    if (text.find(word) == std::string::npos) {
      UNSCOPED_INFO("'" << text << "' does not say '" << word << "'");
      return false;
    }
  }
  return true;
}

struct Exposed {
  explicit Exposed(const ModuleState& state) : pieces(state.pieces()), counters(state.counters()) {}
  ArrayMap pieces;
  std::map<std::string, Index> counters;
};

bool unchanged(const ModuleState& state, const Exposed& before) {
  const Exposed now(state);
  if (now.counters != before.counters) return false;
  for (const auto& [name, array] : before.pieces) {
    if (now.pieces.at(name).shape() != array.shape() || differ(now.pieces.at(name).floats(), array.floats()))
      return false;
  }
  return true;
}

bool same(const ArrayMap& a, const ArrayMap& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, array] : a) {
    if (!bits_equal(array.floats(), b.at(name).floats())) return false;
  }
  return true;
}

Array with_value(Array array, Index index, float value) {
  array.floats()[static_cast<std::size_t>(index)] = value;
  return array;
}

}  // namespace

TEST_CASE("steps, chunks and the whole sequence agree through the checked interface") {
  for (const Kind& kind : {kTransformer, kWindow, kMamba3}) {
    BlockModule block = make(kind);
    const Array x = drawn(80, {2, 9, kind.d_model});
    const Array whole = block.forward(x);
    const auto state = block.allocate_state(2, 9);
    CHECK(bits_equal(block.forward(positions(x, 0, 4), *state).floats(), positions(whole, 0, 4).floats()));
    for (Index t = 4; t < 9; ++t) {
      CHECK(bits_equal(block.step(positions(x, t, t + 1), *state).floats(), positions(whole, t, t + 1).floats()));
    }
  }
}

TEST_CASE("step takes a token a row with or without the length axis") {
  BlockModule block = make(kTransformer);
  const Array token = drawn(81, {2, 12});
  const Array three = Array::from_floats({2, 1, 12}, token.floats());
  const auto one = block.allocate_state(2, 3);
  const auto other = block.allocate_state(2, 3);
  const Array y = block.step(token, *one);
  CHECK(y.shape() == Shape{2, 1, 12});
  CHECK(bits_equal(y.floats(), block.step(three, *other).floats()));
}

TEST_CASE("ragged rows have the bits they have alone, and their padding may hold anything") {
  for (const Kind& kind : {kTransformer, kWindow, kMamba3}) {
    BlockModule block = make(kind);
    Array x = drawn(82, {3, 7, kind.d_model});
    const std::vector<Index> lengths = {7, 1, 4};
    for (Index row = 0; row < 3; ++row) {
      const Index first = (row * 7 + lengths[static_cast<std::size_t>(row)]) * kind.d_model;
      for (Index i = first; i < (row + 1) * 7 * kind.d_model; ++i) {
        x.floats()[static_cast<std::size_t>(i)] = i % 2 == 0 ? kQuietNan : -kInfinity;
      }
    }
    const Array given = Array::from_floats(x.shape(), x.floats());
    const Array y = block.forward(x, lengths);
    CHECK(bits_equal(x.floats(), given.floats()));
    for (Index row = 0; row < 3; ++row) {
      const Index real = lengths[static_cast<std::size_t>(row)];
      const Array alone = block.forward(positions(batch_row(x, row), 0, real));
      CHECK(bits_equal(positions(batch_row(y, row), 0, real).floats(), alone.floats()));
      const Array padding = positions(batch_row(y, row), real, 7);
      for (const float value : padding.floats()) CHECK(to_bits(value) == 0);
    }
  }
}

TEST_CASE("the first fault of the options and weights is the one that is named") {
  const auto words = [](json options, const std::function<void(ArrayMap&)>& edit = {}) {
    ArrayMap weights = weights_of(kTransformer);
    if (edit) edit(weights);
    json all = kTransformer.options;
    all.update(options);
    return refusal([&] { BlockModule(reference(), "transformer", all, views(weights)); });
  };
  CHECK(words(json::object()).empty());
  CHECK(contains(words({{"colour", 3}}), {"type: ", "'colour'", "rope_theta"}));
  CHECK(contains(words({{"n_heads", true}}), {"type: ", "n_heads", "integer", "true"}));
  CHECK(contains(words({{"window", 2.0}}), {"type: ", "window", "2.0"}));
  CHECK(contains(words({{"qkv_bias", 1}}), {"type: ", "qkv_bias"}));
  CHECK(contains(words({{"rope_theta", "large"}}), {"type: ", "rope_theta"}));
  CHECK(contains(words({{"rope_theta", 1e300}}), {"value: ", "rope_theta", "infinity"}));
  CHECK(contains(words({{"attn_softcap", 1e-60}}), {"value: ", "attn_softcap", "rounds to 0"}));
  CHECK(contains(words({{"rope_scaling", "linear"}}), {"type: ", "rope_scaling"}));
  CHECK(contains(words({{"rope_scaling", {{"rope_type", "ntk"}, {"factor", 2}}}}), {"value: ", "rope_scaling", "ntk"}));
  CHECK(words({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}, {"extra", "ignored"}}}}).empty());
  CHECK(words({{"rope_scaling", nullptr}, {"attn_softcap", nullptr}, {"rope_dim", nullptr}}).empty());
  CHECK(contains(words({{"numeric_mode", "fast"}}), {"unsupported: ", "numeric_mode"}));
  CHECK(contains(words({{"numeric_mode", "quick"}}), {"value: ", "numeric_mode", "quick"}));
  CHECK(words({{"numeric_profile", "fixed15_v1"}}).empty());
  CHECK(contains(words({{"n_heads", 4}, {"n_kv_heads", 2}}), {"value: ", "head_dim", "even", "3"}));
  // Two faults: the row that comes first.
  CHECK(contains(words({{"window", -1}, {"norm", "none"}}), {"window"}));
  CHECK(contains(words({{"mlp", "relu"}, {"max_positions", 0}}), {"max_positions"}));
  CHECK(contains(words({{"norm_bias", true}, {"n_heads", 5}}), {"d_model 12", "n_heads 5", "head_dim 2"}));
  CHECK(contains(words({{"colour", 3}}, [](ArrayMap& weights) { weights.erase("q_proj.weight"); }),
                 {"value: ", "missing: q_proj.weight", "unknown: none", "down_proj.weight"}));
  CHECK(contains(words(json::object(),
                       [](ArrayMap& weights) {
                         weights["v_proj.weight"] = Array(DType::float64, {6, 12});
                       }),
                 {"type: ", "v_proj.weight", "float64", "float32"}));
  CHECK(contains(words(json::object(),
                       [](ArrayMap& weights) {
                         weights["o_proj.weight"] = Array(DType::float32, {12, 11});
                       }),
                 {"value: ", "o_proj.weight", "(12, 11)", "(12, 12)"}));
  CHECK(contains(words(json::object(),
                       [](ArrayMap& weights) {
                         weights["gate_proj.weight"] = Array(DType::float32, {0, 12});
                       }),
                 {"value: ", "gate_proj.weight", "(0, 12)", "intermediate >= 1"}));
  CHECK(contains(words(json::object(), [](ArrayMap& weights) { weights.erase("input_layernorm.weight"); }),
                 {"value: ", "missing: input_layernorm.weight"}));
  CHECK(contains(refusal([] { BlockModule(reference(), "rnn", json::object(), {}); }), {"value: ", "'rnn'", "mamba3"}));
  CHECK(contains(refusal([] {
                   BlockModule(reference(), "mamba3", {{"chunk", 32}}, views(weights_of(kMamba3)));
                 }),
                 {"type: ", "'chunk'"}));
}

TEST_CASE("a refused call says why and leaves states and reports as they were") {
  for (const Kind& kind : {kTransformer, kWindow, kMamba3}) {
    BlockModule block = make(kind);
    const Index dm = kind.d_model;
    const auto state = block.allocate_state(2, 8);
    block.forward(drawn(83, {2, 5, dm}), *state);
    const Exposed before(*state);
    const ArrayMap reports = block.reports();
    const std::vector<Index> lengths = {1, 2};
    const auto check = [&](std::initializer_list<const char*> words, const auto& call) {
      CHECK(contains(refusal(call), words));
      CHECK(unchanged(*state, before));
      CHECK(same(block.reports(), reports));
    };
    const Array token = drawn(84, {2, 1, dm});
    check({"type: ", "x", "float64"}, [&] { block.forward(Array(DType::float64, {2, 1, dm}), *state); });
    check({"value: ", "x", "(2,)"}, [&] { block.step(drawn(1, {2}), *state); });
    check({"value: ", "x", "(0, 1, "}, [&] { block.forward(Array(DType::float32, {0, 1, dm}), *state); });
    check({"value: ", "d_model", "5"}, [&] { block.step(drawn(1, {2, 1, 5}), *state); });
    check({"value: ", "L = 2"}, [&] { block.step(drawn(1, {2, 2, dm}), *state); });
    check({"value: ", "state"}, [&] { block.step(token); });
    check({"value: ", "3", "2"}, [&] { block.forward(drawn(1, {3, 1, dm}), *state); });
    check({"value: ", "lengths", "state"}, [&] { block.forward(drawn(1, {2, 2, dm}), *state, lengths); });
    check({"value: ", "lengths", "3", "2"}, [&] { block.forward(drawn(1, {3, 2, dm}), lengths); });
    check({"value: ", "lengths[1]", "2"}, [&] { block.forward(drawn(1, {2, 1, dm}), lengths); });
    check({"value: ", "infinity in x at flat index 3"}, [&] {
      block.step(with_value(drawn(84, {2, 1, dm}), 3, -kInfinity), *state);
    });
    if (kind.name == "transformer") {
      check({"value: ", "9", "8"}, [&] { block.forward(drawn(1, {2, 4, dm}), *state); });
    }
    CHECK(bits_equal(block.step(token, *state).floats(),
                     [&] {
                       BlockModule fresh = make(kind);
                       const auto again = fresh.allocate_state(2, 8);
                       fresh.forward(drawn(83, {2, 5, dm}), *again);
                       return fresh.step(token, *again);
                     }()
                         .floats()));
  }
}

TEST_CASE("a weight that is not finite is found by the next call and can be replaced") {
  for (const Kind& kind : {kTransformer, kMamba3}) {
    BlockModule block = make(kind);
    const std::string name = block.weight_specs()[2].name;
    const Array old = block.weight(name);
    const Array x = drawn(85, {1, 3, kind.d_model});
    const Array y = block.forward(x);
    block.set_weight(name, with_value(block.weight(name), 0, kQuietNan));
    CHECK(contains(refusal([&] { block.forward(x); }), {"value: ", "NaN in ", name.c_str(), "at flat index 0"}));
    // x is looked at before the weights
    CHECK(contains(refusal([&] {
                     block.forward(with_value(drawn(85, {1, 3, kind.d_model}), 1, kQuietNan));
                   }),
                   {"NaN in x at flat index 1"}));
    CHECK(contains(refusal([&] { block.backward(x, x); }), {"NaN in ", name.c_str()}));
    block.set_weight(name, old);
    CHECK(bits_equal(block.forward(x).floats(), y.floats()));
    CHECK(contains(refusal([&] { block.set_weight("zzz", old); }), {"value: ", "zzz", name.c_str()}));
    CHECK(contains(refusal([&] {
                     block.set_weight(name, drawn(1, {3, 3, 3}));
                   }),
                   {"value: ", name.c_str(), "(3, 3, 3)"}));
  }
}

TEST_CASE("the caller's pieces are read as they are given, by the next call") {
  BlockModule block = make(kTransformer);
  const auto state = block.allocate_state(1, 4);
  const Array keys = drawn(86, {24});
  const Array values = drawn(87, {24});

  SECTION("pieces and counter can be set one after the other") {
    state->set({{"k_cache", keys}}, {});
    state->set({{"v_cache", values}}, {});
    state->set({}, {{"cached_tokens", 3}});
    const auto together = block.allocate_state(1, 4);
    together->set({{"k_cache", keys}, {"v_cache", values}}, {{"cached_tokens", 3}});
    CHECK(bits_equal(state->pieces().at("k_cache").floats(), keys.floats()));
    const Array token = drawn(88, {1, 1, 12});
    CHECK(bits_equal(block.step(token, *state).floats(), block.step(token, *together).floats()));
    CHECK(state->keys().shape() == Shape{1, 1, 4, 6});
    CHECK(bits_equal(state->keys().floats().first(18), keys.floats().first(18)));
  }
  SECTION("a refused call leaves even the bytes beyond the used part") {
    state->set({{"k_cache", keys}, {"v_cache", values}}, {{"cached_tokens", 2}});
    const Exposed before(*state);
    CHECK(contains(refusal([&] {
                     block.step(with_value(drawn(88, {1, 1, 12}), 0, kQuietNan), *state);
                   }),
                   {"NaN in x"}));
    CHECK(unchanged(*state, before));
  }
  SECTION("only the held part must be finite") {
    state->set({{"k_cache", with_value(drawn(86, {24}), 13, kInfinity)}, {"v_cache", values}}, {{"cached_tokens", 2}});
    const auto held = block.allocate_state(1, 4);
    held->set({{"k_cache", with_value(drawn(86, {24}), 13, kInfinity)}, {"v_cache", values}}, {{"cached_tokens", 3}});
    const Array token = drawn(88, {1, 1, 12});
    CHECK(contains(refusal([&] { block.step(token, *held); }), {"value: ", "infinity in k_cache at flat index 13"}));
    CHECK(refusal([&] { block.step(token, *state); }).empty());
  }
  SECTION("what does not fit is refused by the call that would read it") {
    const Array token = drawn(88, {1, 1, 12});
    state->set({{"v_cache", drawn(1, {23})}}, {});
    CHECK(contains(refusal([&] { block.step(token, *state); }), {"value: ", "v_cache", "(23,)", "(24,)"}));
    state->set({{"v_cache", Array(DType::float16, {24})}}, {});
    CHECK(contains(refusal([&] { block.step(token, *state); }), {"type: ", "v_cache", "float16"}));
    state->set({{"v_cache", values}}, {{"cached_tokens", 5}});
    CHECK(contains(refusal([&] { block.step(token, *state); }), {"value: ", "cached_tokens", "5", "4"}));
    state->set({}, {{"cached_tokens", 0}});
    CHECK(refusal([&] { block.step(token, *state); }).empty());
    CHECK(contains(refusal([&] { state->set({{"cache", values}}, {}); }), {"value: ", "'cache'", "k_cache"}));
    CHECK(contains(refusal([&] { state->set({}, {{"max_tokens", 9}}); }), {"value: ", "max_tokens", "4", "9"}));
  }
}

TEST_CASE("pieces of a Mamba-3 state that a call only copies keep their bytes") {
  BlockModule block = make(kMamba3);
  const auto state = block.allocate_state(1);
  const float subnormal = from_bits(0x00000123U);
  Array h(DType::float32, {1, 1, 64, 128});
  Array rows(DType::float32, {1, 64, 1, 64});
  h.floats()[5] = subnormal;
  rows.floats()[3] = -subnormal;                // a buffered row that stays
  rows.floats()[63 * 64] = from_bits(0x1234U);  // a row that is not in use
  state->set({{"h", h}, {"buffer_v", rows}}, {{"buffered_tokens", 2}});
  block.forward(drawn(89, {1, 3, 32}), *state);
  CHECK(to_bits(state->pieces().at("h").floats()[5]) == 0x123);
  const Array after = state->pieces().at("buffer_v");
  CHECK(to_bits(after.floats()[3]) == 0x80000123U);
  CHECK(to_bits(after.floats()[63 * 64]) == 0x1234U);
  CHECK(state->counters().at("buffered_tokens") == 5);
  CHECK(contains(refusal([&] { state->keys(); }), {"unsupported: ", "keys", "mamba3"}));
}

TEST_CASE("a state serves the blocks it fits, and no others") {
  BlockModule block = make(kTransformer);
  BlockModule twin = make(kTransformer);
  BlockModule window = make(kWindow);
  BlockModule mamba = make(kMamba3);
  const auto executor = make_executor("cpu");
  BlockModule elsewhere = make(kTransformer, *executor);
  const auto state = block.allocate_state(1, 4);
  const Array token = drawn(90, {1, 1, 12});
  CHECK(refusal([&] { twin.step(token, *state); }).empty());
  CHECK(contains(refusal([&] { window.step(token, *state); }), {"value: ", "window", "0", "3"}));
  CHECK(contains(refusal([&] { mamba.step(drawn(90, {1, 1, 32}), *state); }), {"value: ", "transformer"}));
  CHECK(contains(refusal([&] { elsewhere.step(token, *state); }), {"value: ", "executor"}));
  CHECK(contains(refusal([&] { block.allocate_state(0, 4); }), {"value: ", "batch_size", "0"}));
  CHECK(contains(refusal([&] { block.allocate_state(2, 0); }), {"value: ", "max_tokens", "0"}));
}

namespace {

// Calls back into the block while it computes.
struct Intruder final : StageRecorder {
  explicit Intruder(std::function<void()> act) : action(std::move(act)) {}
  void record(std::string_view, const Shape&, const float*) override {
    if (message.empty()) message = refusal(action);
  }
  std::function<void()> action;
  std::string message;
};

}  // namespace

TEST_CASE("a call from within a call is refused and disturbs nothing") {
  BlockModule block = make(kTransformer);
  const Array x = drawn(91, {1, 4, 12});
  const Array y = block.forward(x);
  const auto state = block.allocate_state(1, 8);
  Intruder intruder([&] { block.step(drawn(91, {1, 12}), *state); });
  block.set_stage_recorder(&intruder);
  CHECK(bits_equal(block.forward(x).floats(), y.floats()));
  block.set_stage_recorder(nullptr);
  CHECK(contains(intruder.message, {"value: ", "another call"}));
  CHECK(state->counters().at("cached_tokens") == 0);
  CHECK(refusal([&] { block.step(drawn(91, {1, 12}), *state); }).empty());
}

}  // namespace samba
