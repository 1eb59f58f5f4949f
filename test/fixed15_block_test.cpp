// The transformer block under numeric_profile fixed15_v1 (spec 20 sections 8 to 10), beyond the recorded cases.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "block_fixture.h"
#include "samba/blocks/module.h"
#include "samba/blocks/transformer/transformer_options.h"
#include "samba/numerics/fixed15.h"

namespace samba {
namespace {

using nlohmann::json;

const json kOptions = {{"n_heads", 4}, {"n_kv_heads", 2}, {"numeric_profile", "fixed15_v1"}};

TransformerOptions sizes(Index n_heads, Index head_dim, Index intermediate) {
  TransformerOptions options;
  options.n_heads = n_heads;
  options.n_kv_heads = (n_heads + 1) / 2;
  options.head_dim = head_dim;
  options.d_model = n_heads * head_dim;
  options.intermediate = intermediate;
  return options;
}

ArrayMap some_weights() { return drawn_weights(sizes(4, 6, 20).weight_specs()); }

BlockModule block(Executor& executor, const ArrayMap& weights, json extra = json::object()) {
  json options = kOptions;
  options.update(extra);
  return {executor, "transformer", options, views(weights)};
}

}  // namespace

TEST_CASE("the two profiles have different bits") {
  for (const auto& executor : every_executor()) {
    BlockModule integers = block(*executor, some_weights());
    BlockModule floats = block(*executor, some_weights(), {{"numeric_profile", "fp32_v1"}});
    const Array x = drawn(50, {1, 5, 24});
    CHECK(differ(integers.forward(x).floats(), floats.forward(x).floats()));
  }
}

TEST_CASE("an edited weight is quantised again; an open session keeps the old one") {
  for (const auto& executor : every_executor()) {
    INFO(executor->name() << " " << executor->instruction_set());
    ArrayMap weights = some_weights();
    BlockModule module = block(*executor, weights), unchanged = block(*executor, weights);
    const auto state = module.allocate_state(2, 8), other = unchanged.allocate_state(2, 8);
    DecodeSession session = module.open_session(*state);
    for (const char* name : {"q_proj.weight", "down_proj.weight"}) {
      const Array value = drawn(60, weights.at(name).shape(), 0.0F, 3.0F);
      module.set_weight(name, value);
      weights[name] = value;
    }
    const Array x = drawn(51, {2, 5, 24});
    CHECK(bits_equal(session.forward(x).floats(), unchanged.forward(x, *other).floats()));
    CHECK(bits_equal(module.forward(x).floats(), block(*executor, weights).forward(x).floats()));
  }
}

TEST_CASE("keys that a caller writes into the cache are quantised anew, in a ring as well") {
  for (const auto& executor : every_executor()) {
    for (const Index window : {0, 4}) {
      INFO(executor->name() << " " << executor->instruction_set() << ", window " << window);
      BlockModule module = block(*executor, some_weights(), {{"window", window}});
      const auto one = module.allocate_state(1, 12), two = module.allocate_state(1, 12);
      const Array x = drawn(52, {1, 12, 24}), z = drawn(53, {1, 12, 24});
      module.forward(positions(x, 0, 7), *one);
      module.step(positions(x, 7, 8), *one);
      module.forward(positions(z, 0, 6), *two);
      module.step(positions(z, 6, 7), *two);
      const ArrayMap pieces = two->pieces();
      one->set(views(pieces), {{"cached_tokens", 7}});
      for (Index t = 7; t < 10; ++t) {
        const Array token = positions(z, t, t + 1);
        CHECK(bits_equal(module.step(token, *one).floats(), module.step(token, *two).floats()));
      }
    }
  }
}

TEST_CASE("there is no gradient under fixed15_v1, and no tape") {
  for (const auto& executor : every_executor()) {
    BlockModule module = block(*executor, some_weights());
    const Array x = drawn(54, {1, 3, 24});
    CHECK_THAT(refusal([&] { module.backward(x, x); }),
               Catch::StartsWith("unsupported: ") && Catch::Contains("backward") && Catch::Contains("numeric_profile"));
    CHECK_THAT(refusal([&] { module.forward_with_tape(x); }),
               Catch::StartsWith("unsupported: ") && Catch::Contains("forward_with_tape"));
  }
}

TEST_CASE("a state belongs to the profile it was made under") {
  for (const auto& executor : every_executor()) {
    BlockModule integers = block(*executor, some_weights());
    BlockModule floats = block(*executor, some_weights(), {{"numeric_profile", "fp32_v1"}});
    const auto state = floats.allocate_state(1, 4);
    CHECK_THAT(refusal([&] {
                 integers.forward(drawn(55, {1, 2, 24}), *state);
               }),
               Catch::StartsWith("value: ") && Catch::Contains("numeric_profile") && Catch::Contains("fp32_v1") &&
                   Catch::Contains("fixed15_v1"));
  }
}

TEST_CASE("a product over more than 65536 terms is refused by the call, after all that is wrong with its values") {
  const auto executor = make_executor("cpu");
  const auto with_intermediate = [&](Index intermediate) {
    const json options = {{"n_heads", 1}, {"numeric_profile", "fixed15_v1"}};
    const ArrayMap weights = drawn_weights(sizes(1, 2, intermediate).weight_specs());
    return BlockModule(*executor, "transformer", options, views(weights));
  };
  const Array x = drawn(56, {1, 2, 2});
  BlockModule longest = with_intermediate(kLongestFixed15Sum);
  CHECK(refusal([&] { longest.forward(x); }).empty());
  BlockModule too_long = with_intermediate(kLongestFixed15Sum + 1);
  const auto state = too_long.allocate_state(1, 4);
  CHECK_THAT(refusal([&] { too_long.forward(x, *state); }),
             Catch::StartsWith("value: ") && Catch::Contains("k = 65537") && Catch::Contains("65536"));
  CHECK(state->counters().at("cached_tokens") == 0);
  Array bad = drawn(56, {1, 2, 2});
  bad.floats()[3] = kQuietNan;
  CHECK_THAT(refusal([&] { too_long.forward(bad, *state); }), Catch::Contains("NaN"));
}

}  // namespace samba
