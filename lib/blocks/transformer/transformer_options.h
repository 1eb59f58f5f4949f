// The options of a transformer block (spec 20 section 1), and the refusals at construction (section 8).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "samba/blocks/block.h"
#include "samba/blocks/rotary_table.h"
#include "samba/core/array.h"

namespace samba {

enum class TransformerNorm { rmsnorm, layernorm, rmsnorm_offset };
enum class TransformerMlp { swiglu, geglu, geglu_tanh, gelu, gelu_tanh };  // the first three are gated

enum class NumericProfile { fp32_v1, fixed15_v1 };  // fixed15_v1: spec 20 section 10

// Every tensor a block can have, in registry order.
enum class TransformerWeight {
  input_norm,
  post_attention_norm,
  q_proj,
  k_proj,
  v_proj,
  o_proj,
  gate_proj,
  up_proj,
  down_proj,
  q_bias,
  k_bias,
  v_bias,
  o_bias,
  input_norm_bias,
  post_attention_norm_bias,
  up_bias,
  down_bias,
  gate_bias,
  q_norm,
  k_norm
};
inline constexpr std::size_t kTransformerWeights = 20;

struct TransformerOptions {
  Index d_model = 0;
  Index n_heads = 0;
  Index n_kv_heads = 0;
  Index head_dim = 0;
  Index intermediate = 0;
  Index window = 0;  // 0: full causal

  float rope_theta = 10000.0F;
  RopeScaling rope_scaling;
  Index rope_dim = 0;  // 0: head_dim
  Index max_positions = 8192;

  bool qkv_bias = false;
  bool o_bias = false;
  bool norm_bias = false;
  bool mlp_bias = false;
  TransformerNorm norm = TransformerNorm::rmsnorm;
  float norm_eps = 1e-6F;
  TransformerMlp mlp = TransformerMlp::swiglu;
  bool qk_norm = false;
  std::optional<float> attn_softcap;
  NumericProfile numeric_profile = NumericProfile::fp32_v1;

  Index query_width() const { return n_heads * head_dim; }
  Index key_width() const { return n_kv_heads * head_dim; }
  Index rotary_dim() const { return rope_dim == 0 ? head_dim : rope_dim; }
  bool gated() const { return mlp != TransformerMlp::gelu && mlp != TransformerMlp::gelu_tanh; }

  bool fixed15() const { return numeric_profile == NumericProfile::fixed15_v1; }

  bool has(TransformerWeight weight) const;
  Shape weight_shape(TransformerWeight weight) const;
  std::vector<WeightSpec> weight_specs() const;  // those the options ask for, in registry order

  // The first option, `window` and the head counts aside, that differs from the default block (spec 21 section 3).
  std::optional<std::string> first_not_default() const;

  bool operator==(const TransformerOptions&) const = default;
};

std::string_view transformer_weight_name(TransformerWeight weight);

// Reads the options a user gives (a JSON object; the strings "inf", "-inf", "nan" stand for these numbers) and the
// sizes from the weights' shapes, and refuses in the order and words of spec 20 section 8. Values of the weights are
// not read.
TransformerOptions parse_transformer_options(const nlohmann::json& options, const ConstArrayMap& weights);

// The options of a layer whose sizes are given by name: `intermediate` is one more, and with a head_dim
// n_heads * head_dim need not be d_model. The same refusals.
TransformerOptions parse_transformer_layer(const nlohmann::json& options, Index d_model);

// Every option but the numeric mode, defaults filled in.
nlohmann::json transformer_options_to_json(const TransformerOptions& options);

}  // namespace samba
