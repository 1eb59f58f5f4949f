// The configuration of any stack: both forms, defaults, refusals with their places, registry, positions.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "samba/core/error.h"
#include "samba/model/registry.h"
#include "samba/model/stack_config.h"

using namespace samba;
using nlohmann::json;

namespace {

json general() {
  return json::parse(R"({
    "vocab": 300, "d_model": 32,
    "layers": [{"kind": "transformer", "n_heads": 2, "head_dim": 24, "n_kv_heads": 1, "intermediate": 40},
               {"kind": "mamba1"},
               {"kind": "mamba2", "dt_limit": [0.001, "inf"]},
               {"kind": "mamba3"}]})");
}

std::string refusal(const json& config) {
  try {
    stack_config_from_json(config, "/model");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

json changed(const std::string& pointer, const json& value) {
  json config = general();
  config[json::json_pointer(pointer)] = value;
  return config;
}

}  // namespace

TEST_CASE("A general stack has its defaults, and its JSON is the same configuration again") {
  const StackConfig config = stack_config_from_json(general());
  CHECK(config.vocab == 300);
  CHECK_FALSE(config.samba.has_value());
  CHECK(config.layers[0].kind == BlockKind::transformer);
  CHECK(config.layers[0].transformer.query_width() == 48);
  CHECK(config.layers[0].transformer.d_model == 32);
  CHECK(config.layers[2].mamba2.dt_low == 0.001F);
  CHECK(config.final_norm == TransformerNorm::rmsnorm);
  CHECK(config.norm_eps == 1e-5F);
  CHECK(config.tie_embeddings);
  CHECK_FALSE(config.embedding_scale.has_value());

  const json written = config_to_json(config);
  CHECK(stack_config_from_json(written) == config);
  CHECK(config_to_json(stack_config_from_json(written)) == written);
  CHECK(written["layers"][0]["rope_dim"] == 24);
  CHECK(written["layers"][0]["rope_theta"] == 10000.0);
  CHECK(written["layers"][2] == json::parse(R"({"kind": "mamba2", "dt_limit": [0.0010000000474974513, "inf"]})"));
  CHECK(written["logits_softcap"].is_null());
  CHECK(config_to_ordered_json(config).begin().key() == "vocab");
}

TEST_CASE("Every option of a layer and of the model survives its JSON and counts in equality") {
  json given = general();
  given["final_norm"] = "layernorm";
  given["final_norm_bias"] = true;
  given["embedding_scale"] = 45.25;
  given["logits_softcap"] = 30;
  given["tie_embeddings"] = false;
  given["dropout"] = 0.1;
  given["norm_eps"] = 1e-6;
  given["layers"] = json::array(
      {json::parse(R"({"kind": "transformer", "n_heads": 4, "n_kv_heads": 2, "head_dim": 10, "intermediate": 8,
         "window": 7, "rope_theta": 500000.0, "rope_dim": 6, "max_positions": 4000, "qkv_bias": true, "o_bias": true,
         "mlp_bias": true, "norm": "layernorm", "norm_bias": true, "norm_eps": 1e-5, "mlp": "gelu_tanh",
         "attn_softcap": 50, "numeric_profile": "fixed15_v1", "rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1,
         "high_freq_factor": 4, "original_max_position_embeddings": 8192}})"),
       json::parse(R"({"kind": "transformer", "n_heads": 4, "intermediate": 8, "qk_norm": true, "mlp": "geglu",
         "norm": "rmsnorm_offset", "rope_scaling": {"rope_type": "linear", "factor": 2}})")});
  const StackConfig config = stack_config_from_json(given);
  const json written = config_to_json(config);
  CHECK(stack_config_from_json(written) == config);
  CHECK(written["layers"][0]["numeric_profile"] == "fixed15_v1");
  CHECK(written["layers"][1]["numeric_profile"] == "fp32_v1");
  std::size_t fields = 0;
  const json flat = written.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    if (pointer.find("/kind") != std::string::npos || pointer.find("type") != std::string::npos) continue;
    json other = written;
    json& field = other[json::json_pointer(pointer)];
    if (value.is_boolean()) field = !value.get<bool>();
    if (value.is_number_integer()) field = value.get<Index>() + 2;
    if (value.is_number_float()) field = value.get<double>() * 0.75;
    INFO(pointer);
    if (field == value) continue;  // names and nulls
    StackConfig read = config;
    try {
      read = stack_config_from_json(other);
    } catch (const Error&) {
      continue;  // it contradicts another field: qk_norm with layernorm, heads that no longer divide
    }
    CHECK_FALSE(read == config);
    ++fields;
  }
  CHECK(fields > 30);
}

TEST_CASE("Layers named by strings are the SambaStack, as objects they are not, and nothing is mixed") {
  const json named = json::parse(
      R"({"vocab": 300, "d_model": 32, "layers": ["mamba3", "attention"], "n_heads": 4, "intermediate": 40})");
  const StackConfig config = stack_config_from_json(named);
  REQUIRE(config.samba.has_value());
  CHECK(*config.samba == config_from_json(named));
  CHECK(config == StackConfig(*config.samba));
  CHECK(config_to_json(config) == config_to_json(*config.samba));
  CHECK(config.layers[1].transformer.head_dim == 8);

  const json object = {{"kind", "transformer"}, {"n_heads", 4}, {"intermediate", 40}};
  const StackConfig general = stack_config_from_json(
      {{"vocab", 300}, {"d_model", 32}, {"layers", json::array({{{"kind", "mamba3"}}, object})}});
  CHECK(general.layers == config.layers);
  CHECK_FALSE(general == config);

  json mixed = named;
  mixed["layers"][1] = object;
  CHECK(refusal(mixed) ==
        "/model/layers/1: is an object, but the layers before it are names; layers are either all names (mamba3, "
        "attention) or all objects");
  CHECK(refusal(changed("/layers/2", "mamba3")) ==
        "/model/layers/2: must be an object as the layers before it, got \"mamba3\"; layers are either all names "
        "(mamba3, attention) or all objects");
}

TEST_CASE("A refused configuration names the place and what is accepted") {
  const std::vector<std::pair<json, std::string>> cases = {
      {json(3), "/model: must be an object, got 3"},
      {changed("/layers", json::array()), "/model/layers: must be a list of at least one layer, got []"},
      {changed("/layers", "mamba1"), "/model/layers: must be a list of at least one layer, got \"mamba1\""},
      {changed("/vocab", 1), "/model/vocab: must be an integer >= 2 and <= 2147483647, got 1"},
      {changed("/d_model", 0.5), "/model/d_model: must be an integer >= 1 and <= 2147483647, got 0.5"},
      {changed("/n_heads", 4), "/model/n_heads: is an option of a layer when the layers are objects; give it there"},
      {changed("/final_nrm", "rmsnorm"), "/model/final_nrm: unknown key; did you mean \"final_norm\"?"},
      {changed("/final_norm", "rms"),
       "/model/final_norm: must be one of rmsnorm, layernorm, rmsnorm_offset, got \"rms\"; did you mean \"rmsnorm\"?"},
      {changed("/final_norm_bias", true), "/model/final_norm_bias: needs final_norm layernorm, got final_norm rmsnorm"},
      {changed("/norm_eps", -1), "/model/norm_eps: must be at least 0 and finite as a float32, got -1"},
      {changed("/norm_eps", 1e39), "/model/norm_eps: must be at least 0 and finite as a float32, got 1e+39"},
      {changed("/dropout", 1), "/model/dropout: must be in [0, 1) as a float32, got 1"},
      {changed("/embedding_scale", 0), "/model/embedding_scale: must be a positive float32 number, or null, got 0"},
      {changed("/embedding_scale", 1e-39),
       "/model/embedding_scale: must be a positive float32 number, or null, got 1e-39"},
      {changed("/logits_softcap", -30), "/model/logits_softcap: must be a positive float32 number, or null, got -30"},
      {changed("/logits_softcap", "30"), "/model/logits_softcap: must be a number, got \"30\""},
      {changed("/tie_embeddings", 1), "/model/tie_embeddings: must be true or false, got 1"},
      {changed("/layers/1", json::object()), "/model/layers/1/kind: is required"},
      {changed("/layers/1/kind", "mamba4"),
       "/model/layers/1/kind: must be one of transformer, mamba1, mamba2, mamba3, got \"mamba4\"; did you mean "
       "\"mamba1\"?"},
      {changed("/layers/1/dt_limit", json::array({0, 1})),
       "/model/layers/1/dt_limit: unknown key; known: kind, numeric_mode"},
      {changed("/layers/2/dt_limit", 3), "/model/layers/2/dt_limit: must be two numbers, got 3"},
      {changed("/layers/0/windw", 3), "/model/layers/0/windw: unknown key; did you mean \"window\"?"},
      {changed("/layers/0/window", -1), "/model/layers/0/window: must be 0 (full attention) or positive, got -1"},
      {changed("/layers/0/n_heads", 0), "/model/layers/0/n_heads: must be at least 1, got 0"},
      {changed("/layers/0/n_kv_heads", 3),
       "/model/layers/0/n_heads: must be a multiple of n_kv_heads, got n_heads 2, n_kv_heads 3"},
      {changed("/layers/0/head_dim", 7), "/model/layers/0/head_dim: must be even and positive, got 7"},
      {changed("/layers/0/intermediate", 0), "/model/layers/0/intermediate: must be at least 1, got 0"},
      {changed("/layers/0/mlp", "relu"),
       "/model/layers/0/mlp: 'relu' is unknown; accepted: swiglu, geglu, geglu_tanh, gelu, gelu_tanh"},
      {changed("/layers/0/norm_bias", true), "/model/layers/0/norm_bias: needs norm layernorm, got norm rmsnorm"},
      {changed("/layers/0/rope_scaling", {{"type", "yarn"}, {"factor", 2}}),
       "/model/layers/0/rope_scaling: type \"yarn\" is unknown; accepted: linear, llama3"},
      {changed("/layers/3/numeric_mode", "fast"),
       "/model/layers/3/numeric_mode: 'fast' is not offered by a block; accepted: identical"},
      {changed("/d_model", 48),
       "/model/layers/2/kind: a mamba2 layer needs a d_model that is a multiple of 32, got 48"},
  };
  for (const auto& [config, message] : cases) CHECK(refusal(config) == message);

  json without = general();
  without["layers"][0].erase("n_heads");
  CHECK(refusal(without) == "/model/layers/0/n_heads: is required");
  without = general();
  without["layers"][0].erase("intermediate");
  CHECK(refusal(without) == "/model/layers/0/intermediate: is required");
  without = general();
  without["layers"][0].erase("head_dim");
  without["layers"][0]["n_heads"] = 3;
  CHECK(refusal(without) ==
        "/model/layers/0: d_model must be n_heads * head_dim, got d_model 32, n_heads 3, head_dim 10");
  without = general();
  without.erase("vocab");
  CHECK(refusal(without) == "/model/vocab: is required");
}

TEST_CASE("The registry holds the tensors of the blocks in their order, and the norm's bias behind its weight") {
  json config = general();
  config["final_norm"] = "layernorm";
  config["final_norm_bias"] = true;
  config["tie_embeddings"] = false;
  const Registry registry(stack_config_from_json(config));
  const auto shape = [&](const char* name) {
    const Index index = registry.find(name);
    REQUIRE(index >= 0);
    return registry.tensors()[static_cast<std::size_t>(index)].shape;
  };
  CHECK(registry.tensors().front().name == "embed.weight");
  CHECK(shape("layers.0.q_proj.weight") == Shape{48, 32});
  CHECK(shape("layers.0.k_proj.weight") == Shape{24, 32});
  CHECK(shape("layers.0.o_proj.weight") == Shape{32, 48});
  CHECK(shape("layers.1.A_log") == Shape{64, 16});
  CHECK(shape("layers.1.conv1d.weight") == Shape{64, 1, 4});
  CHECK(shape("layers.2.A_log") == Shape{1});
  CHECK(shape("layers.3.B_bias") == Shape{1, 128});
  CHECK(registry.tensors()[registry.final_norm()].name == "norm_f.weight");
  CHECK(registry.tensors()[registry.final_norm() + 1].name == "norm_f.bias");
  CHECK(registry.tensors().back().name == "lm_head.weight");
  CHECK(registry.head() == registry.tensors().size() - 1);
  CHECK(registry.layer_first(4) == registry.final_norm());
  Index total = 0;
  for (const ParameterTensor& tensor : registry.tensors()) {
    CHECK(tensor.offset == total);
    total += tensor.size;
  }
  CHECK(registry.total() == total);
}

TEST_CASE("The positions of a model are the least that its layers reach") {
  const auto layer = [](Index max_positions, double theta, const char* scaling) {
    json config = {{"kind", "transformer"}, {"n_heads", 4}, {"intermediate", 8}, {"rope_theta", theta}};
    config["max_positions"] = max_positions;
    config["rope_scaling"] = json::parse(scaling);
    return config;
  };
  const auto stack = [](const json& layers) {
    return stack_config_from_json({{"vocab", 9}, {"d_model", 32}, {"layers", layers}});
  };
  CHECK(position_limit(stack(json::array({layer(8192, 10000.0, "null")}))) == 8192);
  CHECK(unreachable_positions(stack(json::array({layer(8192, 10000.0, "null")}))) == 0);
  CHECK(position_limit(stack(json::array({layer(131072, 500000.0, "null")}))) == 8192);
  CHECK(unreachable_positions(stack(json::array({layer(131072, 500000.0, "null")}))) == 131072);
  CHECK(position_limit(stack(json::array({layer(131072, 10000.0, R"({"type": "linear", "factor": 4})")}))) == 32768);
  CHECK(position_limit(stack(json::array({layer(100, 10000.0, "null"), layer(4000, 10000.0, "null")}))) == 100);
  CHECK(position_limit(stack(json::array({{{"kind", "mamba2"}}}))) == 2147483647);
}

TEST_CASE("Every stack can be trained but one with a block of integer products") {
  CHECK_FALSE(inference_only_reason(stack_config_from_json(general())).has_value());
  json offset = general();
  offset["final_norm"] = "rmsnorm_offset";
  offset["embedding_scale"] = 2.0;
  offset["logits_softcap"] = 30.0;
  CHECK_FALSE(inference_only_reason(stack_config_from_json(offset)).has_value());
  CHECK_FALSE(inference_only_reason(stack_config_from_json(changed("/final_norm", "layernorm"))).has_value());
  const std::vector<std::pair<std::string, json>> options = {
      {"rope_theta", 500.0}, {"qkv_bias", true}, {"o_bias", true},  {"mlp_bias", true},
      {"norm", "layernorm"}, {"mlp", "geglu"},   {"qk_norm", true}, {"attn_softcap", 5.0},
      {"max_positions", 99}, {"norm_eps", 1e-5}, {"rope_dim", 8},   {"norm", "rmsnorm_offset"}};
  for (const auto& [name, value] : options) {
    INFO(name);
    CHECK_FALSE(inference_only_reason(stack_config_from_json(changed("/layers/0/" + name, value))).has_value());
  }
  const auto reason = inference_only_reason(stack_config_from_json(changed("/layers/0/numeric_profile", "fixed15_v1")));
  REQUIRE(reason.has_value());
  CHECK(reason->pointer == "/layers/0/numeric_profile");
}
