// The configuration of a Samba stack: ten fields (spec 60 section 1).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "samba/core/array.h"

namespace samba {

enum class LayerKind { mamba3, attention };

std::string_view layer_kind_name(LayerKind kind);  // "mamba3", "attention"

// The fields as a user gives them. make_config checks and completes them.
struct SambaConfigFields {
  Index vocab = 0;
  Index d_model = 0;
  std::vector<std::string> layers;
  std::optional<Index> n_heads;
  std::optional<Index> n_kv_heads;
  std::optional<Index> head_dim;
  std::optional<Index> intermediate;
  bool tie_embeddings = true;
  double norm_eps = 1e-5;
  double dropout = 0.0;
};

// A checked configuration: what equality and checkpoints mean. Made by make_config only.
struct SambaConfig {
  Index vocab = 0;
  Index d_model = 0;
  std::vector<LayerKind> layers;
  // With an attention layer all four are set; without one they are what the user gave, unused.
  std::optional<Index> n_heads;
  std::optional<Index> n_kv_heads;
  std::optional<Index> head_dim;
  std::optional<Index> intermediate;
  bool tie_embeddings = true;
  float norm_eps = 1e-5F;  // of the final norm
  float dropout = 0.0F;    // in [0, 1)

  bool has_attention() const;
  bool operator==(const SambaConfig&) const = default;
};

// Checks in the order of spec 60 section 1; each refusal (Error(value)) names its field.
SambaConfig make_config(const SambaConfigFields& fields);

enum class ConfigKeys {
  user,        // absent fields take their defaults, unknown ones are refused
  checkpoint,  // all ten fields are there, unknown ones are ignored
};

// Error(type) for a JSON type that does not fit, Error(value) for a missing, unknown or refused field.
// Numbers with a point or an exponent are no integers.
SambaConfig config_from_json(const nlohmann::json& object, ConfigKeys keys = ConfigKeys::user);

// All ten fields; norm_eps and dropout as the doubles that equal their float32 values, absent fields null.
nlohmann::json config_to_json(const SambaConfig& config);

}  // namespace samba
