#include <nlohmann/json.hpp>

#include "samba/blocks/transformer/transformer_names.h"
#include "samba/core/error.h"

namespace samba {

using nlohmann::json;

json transformer_options_to_json(const TransformerOptions& options) {
  const auto name_of = [](const auto& table, auto kind) {
    for (const auto& [name, entry] : table) {
      if (entry == kind) return std::string(name);
    }
    throw Error(ErrorKind::internal, "transformer_options_to_json: an option without a name");
  };
  const auto number = [](float value) { return static_cast<double>(value); };
  json scaling;
  if (options.rope_scaling.kind != RopeScaling::Kind::none) {
    const bool linear = options.rope_scaling.kind == RopeScaling::Kind::linear;
    scaling = {{"type", linear ? "linear" : "llama3"}, {"factor", number(options.rope_scaling.factor)}};
    if (!linear) {
      scaling["low_freq_factor"] = number(options.rope_scaling.low_freq_factor);
      scaling["high_freq_factor"] = number(options.rope_scaling.high_freq_factor);
      scaling["original_max_position_embeddings"] = options.rope_scaling.original_max_position_embeddings;
    }
  }
  return {{"n_heads", options.n_heads},
          {"n_kv_heads", options.n_kv_heads},
          {"head_dim", options.head_dim},
          {"window", options.window},
          {"rope_theta", number(options.rope_theta)},
          {"rope_scaling", scaling},
          {"rope_dim", options.rotary_dim()},
          {"max_positions", options.max_positions},
          {"qkv_bias", options.qkv_bias},
          {"o_bias", options.o_bias},
          {"norm_bias", options.norm_bias},
          {"mlp_bias", options.mlp_bias},
          {"norm", name_of(kTransformerNorms, options.norm)},
          {"norm_eps", number(options.norm_eps)},
          {"mlp", name_of(kTransformerMlps, options.mlp)},
          {"qk_norm", options.qk_norm},
          {"attn_softcap", options.attn_softcap ? json(number(*options.attn_softcap)) : json()},
          {"numeric_profile", name_of(kTransformerProfiles, options.numeric_profile)}};
}

}  // namespace samba
