#include "samba/convert/huggingface_names.h"

#include <utility>

#include "samba/core/error.h"

namespace samba {

namespace {

// "layers.<i>.<name>" taken apart; `layer` is -1 for a tensor of no layer.
struct LayerName {
  Index layer = -1;
  std::string name;
};

LayerName layer_name(const std::string& registry_name) {
  constexpr std::string_view kPrefix = "layers.";
  if (!registry_name.starts_with(kPrefix)) return {-1, registry_name};
  const std::size_t point = registry_name.find('.', kPrefix.size());
  return {std::stoll(registry_name.substr(kPrefix.size(), point - kPrefix.size())), registry_name.substr(point + 1)};
}

std::string replaced(std::string name, const std::string& from, const std::string& to) {
  return name.starts_with(from) ? to + name.substr(from.size()) : name;
}

std::string transformer_name(HuggingFaceType type, const std::string& name) {
  if (name.starts_with("input_layernorm") || name.starts_with("post_attention_layernorm")) return name;
  const bool mlp = name.starts_with("gate_") || name.starts_with("up_") || name.starts_with("down_");
  if (!mlp) return "self_attn." + name;
  if (type != HuggingFaceType::starcoder2) return "mlp." + name;
  return "mlp." + replaced(replaced(name, "up_proj", "c_fc"), "down_proj", "c_proj");
}

// phi3 keeps q, k, v in one matrix, and gate and up in another.
bool fuse(const TransformerOptions& options, const std::string& name, const std::string& prefix, TensorPart& part) {
  const Index queries = options.query_width(), keys = options.key_width(), inner = options.intermediate;
  const auto set = [&](const char* tensor, Index rows, Index first) {
    part = {prefix + tensor, {rows, options.d_model}, first, false};
    return true;
  };
  if (name == "q_proj.weight") return set("self_attn.qkv_proj.weight", queries + 2 * keys, 0);
  if (name == "k_proj.weight") return set("self_attn.qkv_proj.weight", queries + 2 * keys, queries);
  if (name == "v_proj.weight") return set("self_attn.qkv_proj.weight", queries + 2 * keys, queries + keys);
  if (name == "gate_proj.weight") return set("mlp.gate_up_proj.weight", 2 * inner, 0);
  if (name == "up_proj.weight") return set("mlp.gate_up_proj.weight", 2 * inner, inner);
  return false;
}

// The mixer's tensors; the norm in front of it is the layer's.
std::string mamba_name(BlockKind kind, const std::string& name) {
  const char* block_norm = kind == BlockKind::mamba1 ? "norm.weight" : "block_norm.weight";
  return name == block_norm ? "norm.weight" : "mixer." + name;
}

}  // namespace

TensorPart huggingface_part(HuggingFaceType type, const StackConfig& config, const ParameterTensor& tensor) {
  const bool mamba = type == HuggingFaceType::mamba || type == HuggingFaceType::mamba2;
  const std::string root = mamba ? "backbone." : "model.";
  const LayerName place = layer_name(tensor.name);
  if (place.layer < 0) {
    if (place.name == "embed.weight")
      return {root + (mamba ? "embeddings.weight" : "embed_tokens.weight"), tensor.shape};
    if (place.name == "lm_head.weight") return {place.name, tensor.shape};
    return {root + (mamba ? place.name : replaced(place.name, "norm_f", "norm")), tensor.shape};
  }
  const std::string prefix = root + "layers." + std::to_string(place.layer) + ".";
  const LayerConfig& layer = config.layers[static_cast<std::size_t>(place.layer)];
  if (mamba) return {prefix + mamba_name(layer.kind, place.name), tensor.shape};
  TensorPart part{prefix + transformer_name(type, place.name), tensor.shape};
  if (type == HuggingFaceType::phi3) fuse(layer.transformer, place.name, prefix, part);
  return part;
}

TensorPart mamba_ssm_part(const StackConfig& config, const ParameterTensor& tensor) {
  const LayerName place = layer_name(tensor.name);
  if (place.layer < 0) {
    if (place.name == "embed.weight") return {"backbone.embedding.weight", tensor.shape};
    return {(place.name == "lm_head.weight" ? "" : "backbone.") + place.name, tensor.shape};
  }
  const BlockKind kind = config.layers[static_cast<std::size_t>(place.layer)].kind;
  TensorPart part{"backbone.layers." + std::to_string(place.layer) + "." + mamba_name(kind, place.name), tensor.shape};
  // Mamba-3 has an axis for the ranks of MIMO, of which SISO has one.
  if (place.name == "B_bias" || place.name == "C_bias") part.shape = {tensor.shape[0], 1, tensor.shape[1]};
  return part;
}

}  // namespace samba
