#include "samba/model/stack_config.h"

#include <algorithm>
#include <limits>

#include "samba/blocks/mamba1/mamba1_block.h"
#include "samba/blocks/mamba3/mamba3_block.h"
#include "samba/core/error.h"

namespace samba {

namespace {

LayerConfig samba_layer(const SambaConfig& config, LayerKind kind) {
  LayerConfig layer;
  if (kind == LayerKind::mamba3) {
    layer.kind = BlockKind::mamba3;
    return layer;
  }
  layer.transformer.d_model = config.d_model;
  layer.transformer.n_heads = *config.n_heads;
  layer.transformer.n_kv_heads = *config.n_kv_heads;
  layer.transformer.head_dim = *config.head_dim;
  layer.transformer.intermediate = *config.intermediate;
  return layer;
}

Index layer_positions(const TransformerOptions& options) {
  return rotary_position_limit(options.rotary_dim(), options.rope_theta, options.rope_scaling, options.max_positions);
}

}  // namespace

std::string_view block_kind_name(BlockKind kind) {
  switch (kind) {
    case BlockKind::transformer:
      return "transformer";
    case BlockKind::mamba1:
      return "mamba1";
    case BlockKind::mamba2:
      return "mamba2";
    case BlockKind::mamba3:
      return "mamba3";
  }
  throw Error(ErrorKind::internal, "unknown block kind");
}

StackConfig::StackConfig(const SambaConfig& config)
    : vocab(config.vocab),
      d_model(config.d_model),
      norm_eps(config.norm_eps),
      tie_embeddings(config.tie_embeddings),
      dropout(config.dropout),
      samba(config) {
  for (const LayerKind kind : config.layers) layers.push_back(samba_layer(config, kind));
}

std::string_view profile_name(const StackConfig& config) {
  if (config.profile == StackProfile::fp32_v2) return "samba.fp32.v2";
  return config.samba ? "samba-stack.fp32.v1" : "samba.stack.fp32.v1";
}

std::vector<WeightSpec> layer_weight_specs(const StackConfig& config, const LayerConfig& layer) {
  switch (layer.kind) {
    case BlockKind::transformer:
      return layer.transformer.weight_specs();
    case BlockKind::mamba1:
      return Mamba1Block::make_weight_specs(config.d_model, ConvWeightShape::with_group_axis);
    case BlockKind::mamba2:
      return Mamba2Block::make_weight_specs(config.d_model, layer.mamba2.conv_shape);
    case BlockKind::mamba3:
      return Mamba3Block::make_weight_specs(config.d_model);
  }
  throw Error(ErrorKind::internal, "unknown block kind");
}

std::optional<InferenceOnlyReason> inference_only_reason(const StackConfig& config) {
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    if (config.layers[i].kind != BlockKind::transformer) continue;
    if (!config.layers[i].transformer.fixed15()) continue;
    return InferenceOnlyReason{
        "/layers/" + std::to_string(i) + "/numeric_profile",
        "a transformer block of numeric_profile fixed15_v1 has no gradient (fp32_v1 has one); the "
        "stack is for inference only"};
  }
  return std::nullopt;
}

Index position_limit(const StackConfig& config) {
  Index limit = std::numeric_limits<std::int32_t>::max();
  for (const LayerConfig& layer : config.layers) {
    if (layer.kind == BlockKind::transformer) limit = std::min(limit, layer_positions(layer.transformer));
  }
  return limit;
}

Index unreachable_positions(const StackConfig& config) {
  Index most = 0;
  for (const LayerConfig& layer : config.layers) {
    if (layer.kind != BlockKind::transformer) continue;
    const Index declared = layer.transformer.max_positions;
    if (layer_positions(layer.transformer) < declared) most = std::max(most, declared);
  }
  return most;
}

}  // namespace samba
