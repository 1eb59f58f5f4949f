#include "samba/model/samba_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"

namespace samba {

namespace {

using Json = nlohmann::json;

constexpr Index kMamba3WidthUnit = 32;
constexpr std::array<const char*, 10> kFieldNames = {"d_model", "dropout",    "head_dim", "intermediate",   "layers",
                                                     "n_heads", "n_kv_heads", "norm_eps", "tie_embeddings", "vocab"};

std::string number_text(double value) { return Json(value).is_null() ? "nan" : Json(value).dump(); }

void require_at_least(const char* name, Index value, Index least, const char* why = "") {
  if (value < least) {
    refuse_value(std::string(name) + " must be at least " + std::to_string(least) + why + ", got " +
                 std::to_string(value));
  }
}

LayerKind layer_kind(const std::string& name, std::size_t position) {
  if (name == "mamba3") return LayerKind::mamba3;
  if (name == "attention") return LayerKind::attention;
  refuse_value("layers[" + std::to_string(position) + "]: a layer is \"mamba3\" or \"attention\", got \"" + name +
               "\"");
}

// Fills and checks the four attention fields.
void complete_attention(SambaConfig& config) {
  if (!config.n_heads) refuse_value("n_heads is required with an attention layer");
  if (!config.intermediate) refuse_value("intermediate is required with an attention layer");
  const Index n_heads = *config.n_heads;
  require_at_least("n_heads", n_heads, 1);
  require_at_least("intermediate", *config.intermediate, 1);
  if (!config.n_kv_heads) config.n_kv_heads = n_heads;
  if (!config.head_dim) config.head_dim = config.d_model / n_heads;
  const Index head_dim = *config.head_dim;
  if (head_dim < 1 || config.d_model % head_dim != 0 || config.d_model / head_dim != n_heads) {
    refuse_value("n_heads * head_dim must be d_model, got n_heads " + std::to_string(n_heads) + ", head_dim " +
                 std::to_string(head_dim) + ", d_model " + std::to_string(config.d_model));
  }
  if (*config.n_kv_heads < 1 || n_heads % *config.n_kv_heads != 0) {
    refuse_value("n_kv_heads must be at least 1 and divide n_heads, got n_kv_heads " +
                 std::to_string(*config.n_kv_heads) + " with n_heads " + std::to_string(n_heads));
  }
  if (head_dim % 2 != 0) {
    refuse_value("head_dim must be even (rotary embedding), got " + std::to_string(head_dim));
  }
}

const Json* field(const Json& object, const char* name, ConfigKeys keys, bool required) {
  const auto found = object.find(name);
  if (found != object.end()) return &*found;
  if (required || keys == ConfigKeys::checkpoint) refuse_value(std::string(name) + " is missing");
  return nullptr;
}

[[noreturn]] void refuse_field(const char* name, const char* accepted, const Json& given) {
  refuse_type(std::string(name) + " must be " + accepted + ", got " + given.dump());
}

Index integer(const char* name, const Json& value, const char* accepted = "an integer") {
  if (!value.is_number_integer()) refuse_field(name, accepted, value);
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
    refuse_value(std::string(name) + " is too large: " + value.dump());
  }
  return value.get<Index>();
}

void read_optional(const Json& object, const char* name, ConfigKeys keys, std::optional<Index>& to) {
  const Json* value = field(object, name, keys, false);
  if (value != nullptr && !value->is_null()) to = integer(name, *value, "an integer or null");
}

void read_number(const Json& object, const char* name, ConfigKeys keys, double& to) {
  const Json* value = field(object, name, keys, false);
  if (value == nullptr) return;
  if (!value->is_number()) refuse_field(name, "a number", *value);
  to = value->get<double>();
}

}  // namespace

std::string_view layer_kind_name(LayerKind kind) { return kind == LayerKind::mamba3 ? "mamba3" : "attention"; }

bool SambaConfig::has_attention() const {
  return std::find(layers.begin(), layers.end(), LayerKind::attention) != layers.end();
}

SambaConfig make_config(const SambaConfigFields& fields) {
  const FloatScope float_scope;
  SambaConfig config;
  require_at_least("vocab", fields.vocab, 2);
  require_at_least("d_model", fields.d_model, 1);
  if (fields.layers.empty()) refuse_value("layers must name at least one layer (\"mamba3\" or \"attention\")");
  config.vocab = fields.vocab;
  config.d_model = fields.d_model;
  for (std::size_t i = 0; i < fields.layers.size(); ++i) config.layers.push_back(layer_kind(fields.layers[i], i));
  const bool has_mamba =
      std::find(config.layers.begin(), config.layers.end(), LayerKind::mamba3) != config.layers.end();
  if (has_mamba && fields.d_model % kMamba3WidthUnit != 0) {
    refuse_value("d_model must be a multiple of " + std::to_string(kMamba3WidthUnit) + " with a mamba3 layer, got " +
                 std::to_string(fields.d_model));
  }
  config.n_heads = fields.n_heads;
  config.n_kv_heads = fields.n_kv_heads;
  config.head_dim = fields.head_dim;
  config.intermediate = fields.intermediate;
  config.tie_embeddings = fields.tie_embeddings;
  if (config.has_attention()) complete_attention(config);

  config.dropout = static_cast<float>(fields.dropout);
  if (!(config.dropout >= 0.0F && config.dropout < 1.0F)) {
    refuse_value("dropout must be in [0, 1) as a float32, got " + number_text(fields.dropout));
  }
  config.norm_eps = static_cast<float>(fields.norm_eps);
  if (!(config.norm_eps >= 0.0F) || std::isinf(config.norm_eps)) {
    refuse_value("norm_eps must be at least 0 and finite as a float32, got " + number_text(fields.norm_eps));
  }
  return config;
}

SambaConfig config_from_json(const Json& object, ConfigKeys keys) {
  if (!object.is_object()) refuse_type("a configuration must be an object, got " + std::string(object.type_name()));
  if (keys == ConfigKeys::user) {
    for (const auto& [key, value] : object.items()) {
      if (std::find(kFieldNames.begin(), kFieldNames.end(), key) != kFieldNames.end()) continue;
      std::string names;
      for (const char* name : kFieldNames) names += (names.empty() ? "" : ", ") + std::string(name);
      refuse_value("unknown configuration field \"" + key + "\"; the fields are " + names);
    }
  }
  SambaConfigFields fields;
  fields.vocab = integer("vocab", *field(object, "vocab", keys, true));
  fields.d_model = integer("d_model", *field(object, "d_model", keys, true));
  const Json& layers = *field(object, "layers", keys, true);
  if (!layers.is_array()) refuse_field("layers", "a list of layer names", layers);
  for (const Json& layer : layers) {
    if (!layer.is_string()) refuse_field("layers", "a list of layer names", layers);
    fields.layers.push_back(layer.get<std::string>());
  }
  read_optional(object, "n_heads", keys, fields.n_heads);
  read_optional(object, "n_kv_heads", keys, fields.n_kv_heads);
  read_optional(object, "head_dim", keys, fields.head_dim);
  read_optional(object, "intermediate", keys, fields.intermediate);
  if (const Json* tie = field(object, "tie_embeddings", keys, false)) {
    if (!tie->is_boolean()) refuse_field("tie_embeddings", "true or false", *tie);
    fields.tie_embeddings = tie->get<bool>();
  }
  read_number(object, "norm_eps", keys, fields.norm_eps);
  read_number(object, "dropout", keys, fields.dropout);
  return make_config(fields);
}

Json config_to_json(const SambaConfig& config) {
  const auto optional = [](const std::optional<Index>& value) { return value ? Json(*value) : Json(); };
  Json layers = Json::array();
  for (const LayerKind kind : config.layers) layers.push_back(layer_kind_name(kind));
  return {{"vocab", config.vocab},
          {"d_model", config.d_model},
          {"layers", layers},
          {"n_heads", optional(config.n_heads)},
          {"n_kv_heads", optional(config.n_kv_heads)},
          {"head_dim", optional(config.head_dim)},
          {"intermediate", optional(config.intermediate)},
          {"tie_embeddings", config.tie_embeddings},
          {"norm_eps", static_cast<double>(config.norm_eps)},
          {"dropout", static_cast<double>(config.dropout)}};
}

}  // namespace samba
