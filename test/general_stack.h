// General stacks for the tests: the shipped ones, and a small one with every kind of block.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "samba/backends/registry.h"
#include "samba/core/files.h"
#include "samba/core/json_fields.h"
#include "samba/model/samba_stack.h"
#include "samba/numerics/generator.h"

namespace samba {

inline SambaStack::Use widest_use(const StackConfig& config) {
  return inference_only_reason(config) ? SambaStack::Use::inference : SambaStack::Use::training;
}

// `changes`: fields of the model that differ.
inline StackConfig small_general_config(const std::string& changes = "{}") {
  nlohmann::json model = nlohmann::json::parse(R"({
    "vocab": 40, "d_model": 32,
    "layers": [{"kind": "transformer", "n_heads": 2, "head_dim": 24, "n_kv_heads": 1, "intermediate": 40,
                "norm": "rmsnorm_offset", "qkv_bias": true, "o_bias": true, "mlp_bias": true, "qk_norm": true},
               {"kind": "mamba1"}, {"kind": "mamba2"}, {"kind": "mamba3"},
               {"kind": "transformer", "n_heads": 4, "intermediate": 24, "norm": "layernorm", "norm_bias": true,
                "mlp": "gelu"}]})");
  model.update(nlohmann::json::parse(changes));
  return stack_config_from_json(model);
}

// Name and configuration of every shipped file that states a general stack.
inline std::vector<std::pair<std::string, StackConfig>> shipped_general_stacks() {
  std::vector<std::pair<std::string, StackConfig>> stacks;
  for (const auto& entry : std::filesystem::directory_iterator(Path(SAMBA_SOURCE_DIR) / "configs")) {
    if (entry.path().extension() != ".json" || entry.path().filename() == "schema.json") continue;
    const nlohmann::json file = parse_json(read_file(entry.path()), entry.path().string());
    if (!file["model"].contains("layers") || !file["model"]["layers"][0].is_object()) continue;
    stacks.emplace_back(entry.path().filename().string(), stack_config_from_json(file["model"], "/model"));
  }
  std::sort(stacks.begin(), stacks.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return stacks;
}

}  // namespace samba
