// The table of blocks and options: what the constructors accept, what they refuse, and what the README says.
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "block_kinds.h"
#include "samba/core/files.h"

namespace samba {
namespace {

using nlohmann::json;

// Values of an option that are accepted and values that are refused, the other options being those of a small block.
struct Values {
  std::vector<json> good;
  std::vector<json> bad;
};

const std::map<std::string, std::map<std::string, Values>>& values() {
  static const std::map<std::string, Values> mode = {{"numeric_mode", {{"identical"}, {"fast", "deterministic", 1}}}};
  static const std::map<std::string, std::map<std::string, Values>> all = {
      {"transformer",
       {{"n_heads", {{1, 2, 3}, {0, 5, 2.0, true}}},
        {"n_kv_heads", {{1, 2}, {0, 3, "2"}}},
        {"head_dim", {{6}, {4, 5}}},
        {"window", {{0, 1, 100}, {-1, 1.5}}},
        {"rope_theta", {{1, 10000, 5e5}, {0, -1, "10000"}}},
        {"rope_scaling",
         {{nullptr,
           {{"type", "linear"}, {"factor", 2}},
           {{"rope_type", "llama3"},
            {"factor", 8},
            {"low_freq_factor", 1},
            {"high_freq_factor", 4},
            {"original_max_position_embeddings", 64}}},
          {"linear", {{"type", "yarn"}, {"factor", 2}}, {{"type", "linear"}}}}},
        {"rope_dim", {{2, 4, 6}, {0, 3, 8}}},
        {"max_positions", {{1, 8192, 100000}, {0, -1}}},
        {"qkv_bias", {{false, true}, {0, "true"}}},
        {"o_bias", {{false, true}, {1}}},
        {"norm_bias", {{false}, {true}}},
        {"mlp_bias", {{false, true}, {nullptr}}},
        {"norm", {{"rmsnorm", "layernorm", "rmsnorm_offset"}, {"rms", 1}}},
        {"norm_eps", {{1e-6, 1e-5}, {0, -1}}},
        {"mlp", {{"swiglu", "geglu", "geglu_tanh", "gelu", "gelu_tanh"}, {"relu"}}},
        {"qk_norm", {{false, true}, {"no"}}},
        {"attn_softcap", {{nullptr, 30, 0.5}, {0, -30}}},
        {"numeric_profile", {{"fp32_v1", "fixed15_v1"}, {"int8_v1"}}},
        {"numeric_mode", mode.at("numeric_mode")}}},
      {"mamba1", mode},
      {"mamba2",
       {{"dt_limit",
         {{json::array({0, "inf"}), json::array({0.001, 0.1})}, {0.1, json::array({1}), json::array({0, "high"})}}},
        {"numeric_mode", mode.at("numeric_mode")}}},
      {"mamba3", mode}};
  return all;
}

std::string construct(const SmallBlock& small, const json& options) {
  json with_sizes = options;
  if (small.kind == "transformer") with_sizes["intermediate"] = 10;
  return refusal([&] {
    const ArrayMap weights = drawn_weights(block_weight_specs(small.kind, with_sizes, small.d_model));
    BlockModule(cpu(), small.kind, options, views(weights));
  });
}

std::string code(const std::string& text) { return "`" + text + "`"; }

// Rows as the README has them.
std::string table() {
  std::ostringstream text;
  text << "| block | option | default | accepted |\n|---|---|---|---|\n";
  for (const std::string& kind : block_kinds()) {
    bool first = true;
    for (const BlockOption& option : block_options(kind)) {
      text << "| " << (first ? code(kind) : "") << " | " << code(option.name) << " | " << code(option.standard) << " | "
           << option.accepted << " |\n";
      first = false;
    }
  }
  return text.str();
}

// What the README has between a line and the next fence or marker.
std::string between(const std::string& text, const std::string& from, const std::string& to) {
  const std::size_t begin = text.find(from);
  if (begin == std::string::npos) return "'" + from + "' is missing";
  const std::size_t start = begin + from.size();
  return text.substr(start, text.find(to, start) - start);
}

}  // namespace

TEST_CASE("Every option of the table is accepted and refused as it says, and there are no others") {
  for (const SmallBlock& small : small_blocks()) {
    const auto& known = values().at(small.kind);
    CHECK(known.size() == block_options(small.kind).size());
    for (const BlockOption& option : block_options(small.kind)) {
      REQUIRE(known.contains(option.name));
      for (const json& good : known.at(option.name).good) {
        json options = small.options;
        options[option.name] = good;
        INFO(small.kind << " " << options);
        CHECK(construct(small, options).empty());
      }
      for (const json& bad : known.at(option.name).bad) {
        json options = small.options;
        options[option.name] = bad;
        INFO(small.kind << " " << options);
        CHECK(contains(construct(small, options), {option.name.c_str()}));
      }
      for (const std::string& word : option.choices) {
        const std::vector<json>& good = known.at(option.name).good;
        CHECK(std::find(good.begin(), good.end(), json(word)) != good.end());
      }
    }
    json options = small.options;
    options["colour"] = 3;
    const ArrayMap weights = weights_of(small);
    const std::string words = refusal([&] { BlockModule(cpu(), small.kind, options, views(weights)); });
    CHECK(contains(words, {"type: ", "'colour'"}));
    for (const std::string& name : block_option_names(small.kind)) CHECK(contains(words, {name.c_str()}));
  }
}

TEST_CASE("The defaults of the table are those of the blocks") {
  for (const SmallBlock& small : small_blocks()) {
    json required = json::object();
    if (small.kind == "transformer") required["n_heads"] = 2;
    SmallBlock plain = small;
    plain.options = required;
    const json resolved = make_block(cpu(), plain).options();
    CHECK(resolved.size() == block_options(small.kind).size());
    for (const BlockOption& option : block_options(small.kind)) {
      INFO(small.kind << " " << option.name);
      REQUIRE(resolved.contains(option.name));
      const json standard = json::parse(option.standard, nullptr, false);
      if (option.name == "norm_eps") {
        CHECK(resolved[option.name].get<float>() == standard.get<float>());
      } else if (!standard.is_discarded()) {
        CHECK(resolved[option.name] == standard);
      }
      if (!option.choices.empty()) CHECK(option.standard == '"' + option.choices.front() + '"');
    }
    if (small.kind == "transformer") {
      CHECK(resolved["n_kv_heads"] == resolved["n_heads"]);
      CHECK(resolved["head_dim"] == small.d_model / 2);
      CHECK(resolved["rope_dim"] == resolved["head_dim"]);
    }
    // Written out they make the same block.
    const Array x = drawn(95, {1, 4, small.d_model});
    SmallBlock written = plain;
    written.options = resolved;
    CHECK(bits_equal(make_block(cpu(), written).forward(x).floats(), make_block(cpu(), plain).forward(x).floats()));
  }
}

TEST_CASE("The README's table of blocks and options is what the code accepts") {
  const std::string readme = read_file(Path(SAMBA_SOURCE_DIR) / "README.md");
  CHECK(between(readme, "<!-- blocks and options -->\n", "<!-- end -->") == table());
}

TEST_CASE("The README's block example is the one that is compiled and run") {
  const std::string readme = read_file(Path(SAMBA_SOURCE_DIR) / "README.md");
  const std::string example = read_file(Path(SAMBA_SOURCE_DIR) / "test" / "example_block.cpp");
  CHECK(between(readme, "<!-- test/example_block.cpp -->\n```cpp\n", "```") == example);
  CHECK(std::count(example.begin(), example.end(), '\n') < 40);
}

}  // namespace samba
