#include "samba/blocks/transformer/transformer_options.h"

#include <array>
#include <string_view>

#include "samba/numerics/float32.h"

namespace samba {

namespace {
constexpr std::array<std::string_view, kTransformerWeights> kNames = {"input_layernorm.weight",
                                                                      "post_attention_layernorm.weight",
                                                                      "q_proj.weight",
                                                                      "k_proj.weight",
                                                                      "v_proj.weight",
                                                                      "o_proj.weight",
                                                                      "gate_proj.weight",
                                                                      "up_proj.weight",
                                                                      "down_proj.weight",
                                                                      "q_proj.bias",
                                                                      "k_proj.bias",
                                                                      "v_proj.bias",
                                                                      "o_proj.bias",
                                                                      "input_layernorm.bias",
                                                                      "post_attention_layernorm.bias",
                                                                      "up_proj.bias",
                                                                      "down_proj.bias",
                                                                      "gate_proj.bias",
                                                                      "q_norm.weight",
                                                                      "k_norm.weight"};
}  // namespace

std::string_view transformer_weight_name(TransformerWeight weight) { return kNames[static_cast<std::size_t>(weight)]; }

bool TransformerOptions::has(TransformerWeight weight) const {
  using W = TransformerWeight;
  switch (weight) {
    case W::gate_proj:
      return gated();
    case W::q_bias:
    case W::k_bias:
    case W::v_bias:
      return qkv_bias;
    case W::o_bias:
      return o_bias;
    case W::input_norm_bias:
    case W::post_attention_norm_bias:
      return norm_bias;
    case W::up_bias:
    case W::down_bias:
      return mlp_bias;
    case W::gate_bias:
      return mlp_bias && gated();
    case W::q_norm:
    case W::k_norm:
      return qk_norm;
    default:
      return true;
  }
}

Shape TransformerOptions::weight_shape(TransformerWeight weight) const {
  using W = TransformerWeight;
  switch (weight) {
    case W::q_proj:
      return {query_width(), d_model};
    case W::k_proj:
    case W::v_proj:
      return {key_width(), d_model};
    case W::o_proj:
      return {d_model, query_width()};
    case W::gate_proj:
    case W::up_proj:
      return {intermediate, d_model};
    case W::down_proj:
      return {d_model, intermediate};
    case W::q_bias:
      return {query_width()};
    case W::k_bias:
    case W::v_bias:
      return {key_width()};
    case W::up_bias:
    case W::gate_bias:
      return {intermediate};
    case W::q_norm:
    case W::k_norm:
      return {head_dim};
    default:
      return {d_model};
  }
}

std::vector<WeightSpec> TransformerOptions::weight_specs() const {
  std::vector<WeightSpec> specs;
  for (std::size_t i = 0; i < kTransformerWeights; ++i) {
    const auto weight = static_cast<TransformerWeight>(i);
    if (has(weight)) specs.push_back({std::string(kNames[i]), weight_shape(weight)});
  }
  return specs;
}

std::optional<std::string> TransformerOptions::first_not_default() const {
  const TransformerOptions standard;
  if (rope_theta != standard.rope_theta) return "rope_theta";
  if (rope_scaling.kind != RopeScaling::Kind::none) return "rope_scaling";
  if (rotary_dim() != head_dim) return "rope_dim";
  if (max_positions != standard.max_positions) return "max_positions";
  if (qkv_bias) return "qkv_bias";
  if (o_bias) return "o_bias";
  if (mlp_bias) return "mlp_bias";
  if (norm_bias) return "norm_bias";
  if (norm != standard.norm) return "norm";
  if (to_bits(norm_eps) != to_bits(standard.norm_eps)) return "norm_eps";
  if (mlp != standard.mlp) return "mlp";
  if (qk_norm) return "qk_norm";
  if (attn_softcap) return "attn_softcap";
  if (numeric_profile != standard.numeric_profile) return "numeric_profile";
  return std::nullopt;
}

}  // namespace samba
