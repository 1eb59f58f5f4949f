// Both forms of a stack's configuration as JSON.
#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "samba/blocks/block_options.h"
#include "samba/blocks/transformer/transformer_names.h"
#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/core/json_fields.h"
#include "samba/model/stack_config.h"
#include "samba/numerics/float32.h"

namespace samba {

namespace {

using nlohmann::json;

constexpr Index kMostModelSize = 2147483647;
constexpr std::size_t kMostLayers = 65536;
constexpr std::array kKinds = {BlockKind::transformer, BlockKind::mamba1, BlockKind::mamba2, BlockKind::mamba3};

const std::vector<std::string> kSambaFields = {"vocab",    "d_model",      "layers",         "n_heads",  "n_kv_heads",
                                               "head_dim", "intermediate", "tie_embeddings", "norm_eps", "dropout"};
const std::vector<std::string> kGeneralFields = {"vocab",           "d_model",  "layers",         "final_norm",
                                                 "final_norm_bias", "norm_eps", "tie_embeddings", "embedding_scale",
                                                 "logits_softcap",  "dropout",  "profile"};

// Runs a check of another floor and puts the pointer of the object in front of its message: of the field, when the
// message begins with the name of one.
template <class Check>
auto at_pointer(const std::string& pointer, const std::vector<std::string>& fields, const Check& check) {
  try {
    return check();
  } catch (const Error& error) {
    const std::string message = error.what();
    const std::string first = message.substr(0, message.find(' '));
    const ErrorKind kind = error.kind() == ErrorKind::unsupported ? ErrorKind::unsupported : ErrorKind::value;
    if (first.size() < message.size() && std::find(fields.begin(), fields.end(), first) != fields.end()) {
      throw Error(kind, pointer + "/" + first + ": " + message.substr(first.size() + 1));
    }
    throw Error(kind, pointer + ": " + message);
  }
}

std::optional<Index> optional_count(const JsonFields& fields, const std::string& name) {
  if (!fields.has(name)) return std::nullopt;
  return fields.integer(name, std::nullopt, 1);
}

constexpr const char* kFp32V2 = "samba.fp32.v2";

// `v1`: the name of the profile that the form of the configuration has by itself.
StackProfile read_profile(const JsonFields& fields, const std::string& v1) {
  return fields.choice("profile", v1, {v1, kFp32V2}) == v1 ? StackProfile::fp32_v1 : StackProfile::fp32_v2;
}

SambaConfig read_samba(const json& object, const std::string& pointer) {
  const JsonFields fields(object, pointer, kSambaFields);
  SambaConfigFields model;
  model.vocab = fields.integer("vocab", std::nullopt, 2);
  model.d_model = fields.integer("d_model", std::nullopt, 1);
  const json& layers = fields.required("layers");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] != "mamba3" && layers[i] != "attention") {
      refuse_choice(pointer + "/layers/" + std::to_string(i), layers[i], {"mamba3", "attention"});
    }
    model.layers.push_back(layers[i].get<std::string>());
  }
  model.n_heads = optional_count(fields, "n_heads");
  model.n_kv_heads = optional_count(fields, "n_kv_heads");
  model.head_dim = optional_count(fields, "head_dim");
  model.intermediate = optional_count(fields, "intermediate");
  model.tie_embeddings = fields.boolean("tie_embeddings", true);
  model.norm_eps = fields.number("norm_eps", 1e-5);
  model.dropout = fields.number("dropout", 0.0);
  return at_pointer(pointer, {}, [&] { return make_config(model); });
}

std::vector<std::string> layer_fields(BlockKind kind) {
  std::vector<std::string> names = block_option_names(block_kind_name(kind));
  if (kind == BlockKind::transformer) names.insert(names.begin(), "intermediate");
  names.insert(names.begin(), "kind");
  return names;
}

BlockKind read_kind(const json& layer, const std::string& pointer) {
  std::vector<std::string> names;
  for (const BlockKind kind : kKinds) names.emplace_back(block_kind_name(kind));
  const auto given = layer.find("kind");
  if (given == layer.end()) refuse_value(pointer + "/kind: is required");
  const auto found = std::find(names.begin(), names.end(), given->is_string() ? given->get<std::string>() : "");
  if (found == names.end()) refuse_choice(pointer + "/kind", *given, names);
  return kKinds[static_cast<std::size_t>(found - names.begin())];
}

LayerConfig read_layer(const json& object, Index d_model, const std::string& pointer) {
  LayerConfig layer;
  layer.kind = read_kind(object, pointer);
  const std::vector<std::string> names = layer_fields(layer.kind);
  const JsonFields fields(object, pointer, names);
  json options = object;
  options.erase("kind");
  if (layer.kind == BlockKind::transformer) {
    layer.transformer = at_pointer(pointer, names, [&] { return parse_transformer_layer(options, d_model); });
    return layer;
  }
  // mamba1 and mamba3 have the mode alone, which mamba2 has too.
  layer.mamba2 = at_pointer(pointer, names, [&] { return parse_mamba2_options(options); });
  const bool wide_unit = layer.kind != BlockKind::mamba1;
  if (wide_unit && d_model % 32 != 0) {
    refuse_value(pointer + "/kind: a " + std::string(block_kind_name(layer.kind)) +
                 " layer needs a d_model that is a multiple of 32, got " + std::to_string(d_model));
  }
  return layer;
}

// A positive float32 that is not subnormal, or none.
std::optional<float> read_factor(const JsonFields& fields, const std::string& name) {
  if (!fields.has(name)) return std::nullopt;
  const auto value = static_cast<float>(fields.number(name, std::nullopt));
  if (!(value >= kMinNormal && is_finite(value))) fields.refuse(name, "a positive float32 number, or null");
  return value;
}

void read_final_norm(const JsonFields& fields, StackConfig& config) {
  std::vector<std::string> names;
  for (const auto& [name, norm] : kTransformerNorms) names.emplace_back(name);
  const std::string given = fields.choice("final_norm", "rmsnorm", names);
  for (const auto& [name, norm] : kTransformerNorms) {
    if (name == given) config.final_norm = norm;
  }
  config.final_norm_bias = fields.boolean("final_norm_bias", false);
  if (config.final_norm_bias && config.final_norm != TransformerNorm::layernorm) {
    refuse_value(fields.pointer_to("final_norm_bias") + ": needs final_norm layernorm, got final_norm " + given);
  }
  const double eps = fields.number("norm_eps", 1e-5);
  config.norm_eps = static_cast<float>(eps);
  if (!(config.norm_eps >= 0.0F) || !is_finite(config.norm_eps)) {
    fields.refuse("norm_eps", "at least 0 and finite as a float32");
  }
}

// A SambaStack; under samba.fp32.v2, which the archive of a SambaStack does not know, the general stack of its layers.
StackConfig read_named_layers(json object, const std::string& pointer) {
  if (!object.contains("profile")) return read_samba(object, pointer);
  std::vector<std::string> names = kSambaFields;
  names.emplace_back("profile");
  const StackProfile profile = read_profile(JsonFields(object, pointer, names), "samba-stack.fp32.v1");
  object.erase("profile");
  StackConfig config = read_samba(object, pointer);
  if (profile == StackProfile::fp32_v1) return config;
  config.samba.reset();
  config.profile = profile;
  return config;
}

StackConfig read_general(const json& object, const std::string& pointer) {
  for (const std::string& name : kSambaFields) {
    const bool known = std::find(kGeneralFields.begin(), kGeneralFields.end(), name) != kGeneralFields.end();
    if (!known && object.contains(name)) {
      refuse_value(pointer + "/" + name + ": is an option of a layer when the layers are objects; give it there");
    }
  }
  const JsonFields fields(object, pointer, kGeneralFields);
  StackConfig config;
  config.vocab = fields.integer("vocab", std::nullopt, 2, kMostModelSize);
  config.d_model = fields.integer("d_model", std::nullopt, 1, kMostModelSize);
  const json& layers = fields.required("layers");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    config.layers.push_back(read_layer(layers[i], config.d_model, pointer + "/layers/" + std::to_string(i)));
  }
  read_final_norm(fields, config);
  config.tie_embeddings = fields.boolean("tie_embeddings", true);
  config.embedding_scale = read_factor(fields, "embedding_scale");
  config.logits_softcap = read_factor(fields, "logits_softcap");
  config.dropout = static_cast<float>(fields.number("dropout", 0.0));
  if (!(config.dropout >= 0.0F && config.dropout < 1.0F)) fields.refuse("dropout", "in [0, 1) as a float32");
  config.profile = read_profile(fields, "samba.stack.fp32.v1");
  return config;
}

nlohmann::ordered_json layer_to_json(const LayerConfig& layer) {
  nlohmann::ordered_json result = {{"kind", block_kind_name(layer.kind)}};
  if (layer.kind == BlockKind::transformer) {
    const json options = transformer_options_to_json(layer.transformer);
    result["n_heads"] = options["n_heads"];
    result["n_kv_heads"] = options["n_kv_heads"];
    result["head_dim"] = options["head_dim"];
    result["intermediate"] = layer.transformer.intermediate;
    for (const auto& [name, value] : options.items()) result[name] = value;
  } else if (layer.kind == BlockKind::mamba2) {
    result["dt_limit"] = mamba2_options_to_json(layer.mamba2)["dt_limit"];
  }
  return result;
}

}  // namespace

StackConfig stack_config_from_json(const json& object, const std::string& pointer) {
  const FloatScope float_scope;
  if (!object.is_object()) {
    refuse_value((pointer.empty() ? "the model" : pointer) + ": must be an object, got " + shown(object));
  }
  const auto layers = object.find("layers");
  const bool listed = layers != object.end() && layers->is_array() && !layers->empty();
  if (layers != object.end() && !listed) {
    refuse_value(pointer + "/layers: must be a list of at least one layer, got " + shown(*layers));
  }
  if (listed && layers->size() > kMostLayers) {
    refuse_value(pointer + "/layers: has " + std::to_string(layers->size()) + " layers; accepted: at most " +
                 std::to_string(kMostLayers));
  }
  if (!listed || !layers->front().is_object()) {
    for (std::size_t i = 0; listed && i < layers->size(); ++i) {
      if (!(*layers)[i].is_object()) continue;
      refuse_value(pointer + "/layers/" + std::to_string(i) +
                   ": is an object, but the layers before it are names; layers are either all names (mamba3, "
                   "attention) or all objects");
    }
    return read_named_layers(object, pointer);
  }
  for (std::size_t i = 0; i < layers->size(); ++i) {
    if ((*layers)[i].is_object()) continue;
    refuse_value(pointer + "/layers/" + std::to_string(i) + ": must be an object as the layers before it, got " +
                 shown((*layers)[i]) + "; layers are either all names (mamba3, attention) or all objects");
  }
  return read_general(object, pointer);
}

nlohmann::ordered_json config_to_ordered_json(const StackConfig& config) {
  auto result = nlohmann::ordered_json::object();
  if (config.samba) {
    const json fields = config_to_json(*config.samba);
    for (const std::string& name : kSambaFields) result[name] = fields[name];
    return result;
  }
  const auto optional = [](const std::optional<float>& value) {
    return value ? json(static_cast<double>(*value)) : json();
  };
  result["vocab"] = config.vocab;
  result["d_model"] = config.d_model;
  result["layers"] = json::array();
  for (const LayerConfig& layer : config.layers) result["layers"].push_back(layer_to_json(layer));
  for (const auto& [name, norm] : kTransformerNorms) {
    if (norm == config.final_norm) result["final_norm"] = name;
  }
  result["final_norm_bias"] = config.final_norm_bias;
  result["norm_eps"] = static_cast<double>(config.norm_eps);
  result["tie_embeddings"] = config.tie_embeddings;
  result["embedding_scale"] = optional(config.embedding_scale);
  result["logits_softcap"] = optional(config.logits_softcap);
  result["dropout"] = static_cast<double>(config.dropout);
  // Said by the stacks that have another one than their form: what was written before there was a choice stays the
  // same.
  if (config.profile == StackProfile::fp32_v2) result["profile"] = profile_name(config);
  return result;
}

json config_to_json(const StackConfig& config) { return config_to_ordered_json(config); }

}  // namespace samba
