// Decode sessions and tapes of the checked blocks (spec 20 section 7, spec 21 section 8, spec 40 section 7).
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <optional>

#include "block_fixture.h"
#include "samba/blocks/mamba3/mamba3_block.h"
#include "samba/blocks/module.h"
#include "samba/blocks/transformer/transformer_options.h"

namespace samba {
namespace {

struct Kind {
  std::string name;
  nlohmann::json options;
  Index d_model;
};

const Kind kTransformer = {"transformer", {{"n_heads", 2}, {"n_kv_heads", 1}}, 12};
const Kind kWindow = {"transformer", {{"n_heads", 2}, {"n_kv_heads", 1}, {"window", 3}}, 12};
const Kind kMamba3 = {"mamba3", nlohmann::json::object(), 32};

Executor& cpu() {
  static const std::unique_ptr<Executor> executor = make_executor("cpu");
  return *executor;
}

BlockModule make(const Kind& kind) {
  TransformerOptions options;
  options.d_model = kind.d_model;
  options.n_heads = 2;
  options.n_kv_heads = 1;
  options.head_dim = kind.d_model / 2;
  options.intermediate = 10;
  const ArrayMap weights =
      drawn_weights(kind.name == "mamba3" ? Mamba3Block::make_weight_specs(kind.d_model) : options.weight_specs());
  return BlockModule(cpu(), kind.name, kind.options, views(weights));
}

bool says(const std::string& text, const std::string& word) {
  if (text.find(word) != std::string::npos) return true;
  UNSCOPED_INFO("'" << text << "' does not say '" << word << "'");
  return false;
}

bool same(const NamedGradients& a, const NamedGradients& b) {
  if (a.names != b.names) return false;
  for (const auto& [name, array] : a.arrays) {
    if (!bits_equal(array.floats(), b.arrays.at(name).floats())) return false;
  }
  return true;
}

Array scaled(Array array, float factor) {
  for (float& value : array.floats()) value *= factor;
  return array;
}

}  // namespace

TEST_CASE("a session steps with the bits of the block, on weights and a state of its own") {
  for (const Kind& kind : {kTransformer, kWindow, kMamba3}) {
    BlockModule block = make(kind);
    const Array x = drawn(70, {2, 8, kind.d_model});
    const Array whole = block.forward(x);
    const auto state = block.allocate_state(2, 8);
    block.forward(positions(x, 0, 3), *state);
    const ArrayMap at_opening = state->pieces();
    const std::string weight = block.weight_specs().back().name;
    const Array old = block.weight(weight);
    {
      DecodeSession session = block.open_session(*state);
      CHECK(session.open());
      block.set_weight(weight, scaled(block.weight(weight), 3.0F));
      for (Index t = 3; t < 6; ++t) {
        CHECK(bits_equal(session.step(positions(x, t, t + 1)).floats(), positions(whole, t, t + 1).floats()));
      }
      for (const auto& [name, array] : at_opening) CHECK(bits_equal(state->pieces().at(name).floats(), array.floats()));
      session.close();
      CHECK_FALSE(session.open());
      session.close();
    }
    block.set_weight(weight, old);
    CHECK(bits_equal(block.forward(positions(x, 6, 8), *state).floats(), positions(whole, 6, 8).floats()));
  }
}

TEST_CASE("an open session owns its state until it is closed, discarded or dropped") {
  for (const Kind& kind : {kTransformer, kMamba3}) {
    BlockModule block = make(kind);
    const auto state = block.allocate_state(1, 8);
    const Array token = drawn(71, {1, 1, kind.d_model});
    const auto owned = [&] { return says(refusal([&] { block.step(token, *state); }), "session"); };
    std::optional<DecodeSession> session(block.open_session(*state));
    CHECK(owned());
    CHECK(says(refusal([&] { block.open_session(*state); }), "session"));
    session->sync_state();
    CHECK(owned());
    DecodeSession moved = std::move(*session);
    session.reset();
    CHECK(owned());
    moved.discard();
    CHECK(refusal([&] { block.step(token, *state); }).empty());
    CHECK(says(refusal([&] { moved.step(token); }), "step: the session is closed"));
    CHECK(says(refusal([&] { moved.sync_state(); }), "sync_state: the session is closed"));
    CHECK(says(refusal([&] { moved.load_state(); }), "load_state: the session is closed"));
    { const DecodeSession dropped = block.open_session(*state); }
    CHECK(refusal([&] { block.step(token, *state); }).empty());
  }
}

TEST_CASE("sync copies out, load copies in, and a refused call changes neither") {
  for (const Kind& kind : {kTransformer, kMamba3}) {
    BlockModule block = make(kind);
    const Array x = drawn(72, {1, 6, kind.d_model});
    const auto token = [&](Index t) { return positions(x, t, t + 1); };
    const auto state = block.allocate_state(1, 8);
    DecodeSession session = block.open_session(*state);
    session.step(token(0));
    session.step(token(1));
    session.sync_state();
    const ArrayMap synced = state->pieces();
    const auto counters = state->counters();
    const Array third = session.step(token(2));
    state->set(views(synced), counters);  // undoes the third token for the caller
    session.load_state();
    CHECK(bits_equal(session.step(token(2)).floats(), third.floats()));
    Array bad = token(3);
    bad.floats()[0] = kQuietNan;
    CHECK(says(refusal([&] { session.step(bad); }), "NaN in x at flat index 0"));
    CHECK(says(refusal([&] { session.step(drawn(1, {2, 1, kind.d_model})); }), "2"));
    CHECK(says(refusal([&] { session.step(drawn(1, {1, 2, kind.d_model})); }), "L = 2"));
    const Array fourth = session.step(token(3));
    session.close();
    CHECK(bits_equal(fourth.floats(), positions(block.forward(x), 3, 4).floats()));
    CHECK(bits_equal(block.step(token(4), *state).floats(), positions(block.forward(x), 4, 5).floats()));
  }
}

TEST_CASE("cached_tokens of a transformer's state follows its session; the counters of Mamba-3 wait for the sync") {
  BlockModule transformer = make(kTransformer);
  const auto cache = transformer.allocate_state(1, 8);
  DecodeSession session = transformer.open_session(*cache);
  session.forward(drawn(73, {1, 3, 12}));
  CHECK(cache->counters().at("cached_tokens") == 3);
  CHECK(session.describe() == "TransformerDecodeSession(open=true, cached_tokens=3)");
  session.discard();
  CHECK(cache->counters().at("cached_tokens") == 3);
  const Array keys = cache->pieces().at("k_cache");
  for (const float value : keys.floats()) CHECK(to_bits(value) == 0);

  BlockModule mamba = make(kMamba3);
  const auto state = mamba.allocate_state(2);
  DecodeSession other = mamba.open_session(*state);
  other.step(drawn(74, {2, 32}));
  CHECK(state->counters().at("buffered_tokens") == 0);
  other.sync_state();
  CHECK(state->counters().at("buffered_tokens") == 1);
  CHECK(other.describe() == "Mamba3DecodeSession(open=true, rows=2)");
  CHECK(says(refusal([&] { other.forward(drawn(74, {2, 1, 32})); }), "unsupported: Mamba3DecodeSession.forward: "));
}

TEST_CASE("a session lives on without its module and its state") {
  std::optional<DecodeSession> session;
  Array want(DType::float32, {});
  const Array token = drawn(75, {1, 12});
  {
    BlockModule block = make(kTransformer);
    const auto state = block.allocate_state(1, 4);
    session.emplace(block.open_session(*state));
    const auto other = block.allocate_state(1, 4);
    want = block.step(token, *other);
  }
  CHECK(bits_equal(session->step(token).floats(), want.floats()));
  session->close();
}

TEST_CASE("close releases the state even when the caller's arrays cannot take the values") {
  BlockModule block = make(kTransformer);
  const auto state = block.allocate_state(1, 4);
  DecodeSession session = block.open_session(*state);
  session.step(drawn(76, {1, 12}));
  state->set({{"k_cache", drawn(1, {5})}}, {});
  CHECK(says(refusal([&] { session.close(); }), "k_cache"));
  CHECK_FALSE(session.open());
  CHECK(refusal([&] { session.close(); }).empty());
  CHECK(says(refusal([&] { block.step(drawn(76, {1, 12}), *state); }), "k_cache"));
}

TEST_CASE("a tape gives the bits of backward, whatever it keeps") {
  for (const Kind& kind : {kTransformer, kWindow, kMamba3}) {
    BlockModule block = make(kind);
    const Array x = drawn(77, {2, 6, kind.d_model});
    const Array dy = drawn(78, {2, 6, kind.d_model});
    const Array y = block.forward(x);
    const NamedGradients want = block.backward(x, dy);
    CHECK(want.names.front() == "x");
    CHECK(want.names.size() == 10);
    for (const std::int64_t budget : {std::int64_t{0}, BlockModule::kDefaultActivationBudget}) {
      const BlockModule::Taped taped = block.forward_with_tape(x, budget);
      CHECK(bits_equal(taped.y.floats(), y.floats()));
      CHECK(taped.tape->retained() == (budget > 0 && kind.name == "transformer"));
      CHECK(same(block.backward_from_tape(*taped.tape, dy), want));
      CHECK(says(refusal([&] { block.backward_from_tape(*taped.tape, dy); }), "tape"));
    }
  }
}

TEST_CASE("a tape keeps x and the weights it was made with") {
  for (const std::int64_t budget : {std::int64_t{0}, BlockModule::kDefaultActivationBudget}) {
    BlockModule block = make(kTransformer);
    Array x = drawn(77, {1, 5, 12});
    const Array dy = drawn(78, {1, 5, 12});
    const NamedGradients want = block.backward(x, dy);
    const BlockModule::Taped taped = block.forward_with_tape(x, budget);
    for (float& value : x.floats()) value = 0.0F;
    block.set_weight("q_proj.weight", scaled(block.weight("q_proj.weight"), 2.0F));
    CHECK(same(block.backward_from_tape(*taped.tape, dy), want));
    const NamedGradients edited = block.backward(drawn(77, {1, 5, 12}), dy);
    CHECK(differ(edited.arrays.at("x").floats(), want.arrays.at("x").floats()));
  }
}

TEST_CASE("states and sessions leave a tape valid; calls, closing and other blocks do not") {
  BlockModule block = make(kTransformer);
  BlockModule other = make(kTransformer);
  const Array x = drawn(77, {1, 5, 12});
  const auto state = block.allocate_state(1, 8);
  {
    const BlockModule::Taped taped = block.forward_with_tape(x);
    DecodeSession session = block.open_session(*state);
    session.step(drawn(79, {1, 12}));
    session.close();
    CHECK(says(refusal([&] { other.backward_from_tape(*taped.tape, x); }), "tape belongs to another block"));
    CHECK(refusal([&] { block.backward_from_tape(*taped.tape, x); }).empty());
  }
  {
    const BlockModule::Taped taped = block.forward_with_tape(x);
    block.step(drawn(79, {1, 12}), *state);
    CHECK(says(refusal([&] { block.backward_from_tape(*taped.tape, x); }), "stale, consumed or incompatible tape"));
  }
  const BlockModule::Taped taped = block.forward_with_tape(x);
  taped.tape->close();
  CHECK(says(refusal([&] { block.backward_from_tape(*taped.tape, x); }), "tape"));
}

TEST_CASE("the gradient is offered for the default options, and says so") {
  for (const char* option : {"max_positions", "norm_eps"}) {
    TransformerOptions sizes;
    sizes.d_model = 12;
    sizes.n_heads = 2;
    sizes.n_kv_heads = 1;
    sizes.head_dim = 6;
    sizes.intermediate = 10;
    nlohmann::json options = kTransformer.options;
    options[option] = option == std::string("norm_eps") ? nlohmann::json(1e-5) : nlohmann::json(100);
    BlockModule block(cpu(), "transformer", options, views(drawn_weights(sizes.weight_specs())));
    const Array x = drawn(77, {1, 2, 12});
    const std::string words = refusal([&] { block.backward(x, x); });
    CHECK(says(words, "unsupported: TransformerBlock.backward: "));
    CHECK(says(words, "default block options"));
    CHECK(says(words, option));
    CHECK(says(refusal([&] { block.forward_with_tape(x); }), "unsupported: TransformerBlock.forward_with_tape: "));
  }
  nlohmann::json spelled = kTransformer.options;
  spelled.update(
      {{"rope_dim", 6}, {"norm_eps", 1e-6}, {"max_positions", 8192}, {"rope_theta", 1e4}, {"mlp", "swiglu"}});
  Kind kind = kTransformer;
  kind.options = spelled;
  BlockModule block = make(kind);
  const Array x = drawn(77, {1, 2, 12});
  CHECK(refusal([&] { block.backward(x, x); }).empty());
}

}  // namespace samba
