#include "samba/convert/gguf_names.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "samba/core/error.h"
#include "samba/model/registry.h"

namespace samba {

namespace {

struct ArchitectureName {
  GgufArchitecture architecture;
  std::string_view name;
};
constexpr std::array kArchitectures = {
    ArchitectureName{GgufArchitecture::llama, "llama"}, ArchitectureName{GgufArchitecture::qwen2, "qwen2"},
    ArchitectureName{GgufArchitecture::qwen3, "qwen3"}, ArchitectureName{GgufArchitecture::gemma, "gemma"},
    ArchitectureName{GgufArchitecture::mamba, "mamba"}, ArchitectureName{GgufArchitecture::mamba2, "mamba2"}};

struct Names {
  std::string_view registry;
  std::string_view gguf;
};
constexpr std::array kTransformer = {Names{"input_layernorm.weight", "attn_norm.weight"},
                                     Names{"post_attention_layernorm.weight", "ffn_norm.weight"},
                                     Names{"q_proj.weight", "attn_q.weight"},
                                     Names{"k_proj.weight", "attn_k.weight"},
                                     Names{"v_proj.weight", "attn_v.weight"},
                                     Names{"o_proj.weight", "attn_output.weight"},
                                     Names{"gate_proj.weight", "ffn_gate.weight"},
                                     Names{"up_proj.weight", "ffn_up.weight"},
                                     Names{"down_proj.weight", "ffn_down.weight"},
                                     Names{"q_proj.bias", "attn_q.bias"},
                                     Names{"k_proj.bias", "attn_k.bias"},
                                     Names{"v_proj.bias", "attn_v.bias"},
                                     Names{"o_proj.bias", "attn_output.bias"},
                                     Names{"up_proj.bias", "ffn_up.bias"},
                                     Names{"down_proj.bias", "ffn_down.bias"},
                                     Names{"gate_proj.bias", "ffn_gate.bias"},
                                     Names{"q_norm.weight", "attn_q_norm.weight"},
                                     Names{"k_norm.weight", "attn_k_norm.weight"}};
constexpr std::array kMamba1 = {Names{"norm.weight", "attn_norm.weight"},
                                Names{"in_proj.weight", "ssm_in.weight"},
                                Names{"conv1d.weight", "ssm_conv1d.weight"},
                                Names{"conv1d.bias", "ssm_conv1d.bias"},
                                Names{"x_proj.weight", "ssm_x.weight"},
                                Names{"dt_proj.weight", "ssm_dt.weight"},
                                Names{"dt_proj.bias", "ssm_dt.bias"},
                                Names{"A_log", "ssm_a"},
                                Names{"D", "ssm_d"},
                                Names{"out_proj.weight", "ssm_out.weight"}};
constexpr std::array kMamba2 = {Names{"block_norm.weight", "attn_norm.weight"},
                                Names{"in_proj.weight", "ssm_in.weight"},
                                Names{"conv1d.weight", "ssm_conv1d.weight"},
                                Names{"conv1d.bias", "ssm_conv1d.bias"},
                                Names{"dt_bias", "ssm_dt.bias"},
                                Names{"A_log", "ssm_a"},
                                Names{"D", "ssm_d"},
                                Names{"norm.weight", "ssm_norm.weight"},
                                Names{"out_proj.weight", "ssm_out.weight"}};

template <std::size_t kCount>
std::string layer_name(const std::array<Names, kCount>& names, std::string_view registry) {
  for (const Names& pair : names) {
    if (pair.registry == registry) return std::string(pair.gguf);
  }
  throw Error(ErrorKind::internal, "a GGUF file has no name for " + std::string(registry));
}

std::string layer_name(BlockKind kind, std::string_view registry) {
  switch (kind) {
    case BlockKind::transformer:
      return layer_name(kTransformer, registry);
    case BlockKind::mamba1:
      return layer_name(kMamba1, registry);
    case BlockKind::mamba2:
      return layer_name(kMamba2, registry);
    case BlockKind::mamba3:
      break;
  }
  throw Error(ErrorKind::internal, "a GGUF file has no names for a mamba3 layer");
}

// The shape in the file of a layer's tensor.
Shape file_shape(BlockKind kind, std::string_view name, const Shape& shape) {
  if (name == "conv1d.weight") return {shape.front(), shape.back()};
  if (kind != BlockKind::mamba2) return shape;
  if (name == "A_log" || name == "D") return {shape[0], 1};
  if (name == "norm.weight") return {1, shape[0]};
  return shape;
}

void place_layer_tensor(GgufArchitecture architecture, const LayerConfig& layer, std::string_view name,
                        GgufTensorPlace& place) {
  place.shape = file_shape(layer.kind, name, place.registry_shape);
  if (name == "A_log") place.change = GgufChange::decay_rate;
  const bool rotated = name.starts_with("q_proj.") || name.starts_with("k_proj.");
  if (architecture == GgufArchitecture::llama && rotated) {
    place.change = GgufChange::interleaved_halves;
    place.head = layer.transformer.head_dim;
  }
  if (architecture == GgufArchitecture::gemma && name.ends_with("norm.weight")) place.change = GgufChange::one_added;
}

}  // namespace

std::string_view gguf_architecture_name(GgufArchitecture architecture) {
  return kArchitectures[static_cast<std::size_t>(architecture)].name;
}

std::optional<GgufArchitecture> find_gguf_architecture(std::string_view name) {
  for (const ArchitectureName& known : kArchitectures) {
    if (known.name == name) return known.architecture;
  }
  return std::nullopt;
}

std::string gguf_architecture_names() {
  std::string names;
  for (const ArchitectureName& known : kArchitectures) names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

std::vector<GgufTensorPlace> gguf_tensor_places(GgufArchitecture architecture, const StackConfig& config) {
  const Registry registry(config);
  std::vector<GgufTensorPlace> places;
  for (const ParameterTensor& tensor : registry.tensors()) {
    GgufTensorPlace place{tensor.name, tensor.shape, "", tensor.shape};
    const bool gemma = architecture == GgufArchitecture::gemma;
    if (tensor.name == "embed.weight") {
      place.name = "token_embd.weight";
    } else if (tensor.name == "lm_head.weight") {
      place.name = "output.weight";
    } else if (tensor.name == "norm_f.weight") {
      place.name = "output_norm.weight";
      if (gemma) place.change = GgufChange::one_added;
    } else {
      const std::size_t number = std::string_view("layers.").size();
      const std::size_t dot = tensor.name.find('.', number);
      const std::string layer = tensor.name.substr(number, dot - number), name = tensor.name.substr(dot + 1);
      const LayerConfig& of = config.layers[std::stoul(layer)];
      place.name = "blk." + layer + "." + layer_name(of.kind, name);
      place_layer_tensor(architecture, of, name, place);
    }
    places.push_back(std::move(place));
  }
  return places;
}

std::vector<float> llama3_rope_factors(Index rotary_dim, float theta, const RopeScaling& scaling) {
  const auto low = static_cast<double>(scaling.low_freq_factor), high = static_cast<double>(scaling.high_freq_factor);
  const auto context = static_cast<double>(scaling.original_max_position_embeddings);
  std::vector<float> factors;
  for (Index i = 0; i < rotary_dim; i += 2) {
    const double exponent = static_cast<double>(i) / static_cast<double>(rotary_dim);
    const double wave = 2.0 * std::numbers::pi * std::pow(static_cast<double>(theta), exponent);
    if (wave < context / high) {
      factors.push_back(1.0F);
    } else if (wave > context / low) {
      factors.push_back(scaling.factor);
    } else {
      const double smooth = (context / wave - low) / (high - low);
      factors.push_back(static_cast<float>(1.0 / ((1.0 - smooth) / static_cast<double>(scaling.factor) + smooth)));
    }
  }
  return factors;
}

std::optional<RopeScaling> scaling_of_rope_factors(std::span<const float> factors, float theta) {
  constexpr float kTolerance = 1e-4F;
  constexpr Index kUsual = 8192, kLeast = 16, kMost = Index{1} << 20;
  if (std::all_of(factors.begin(), factors.end(), [](float factor) { return factor == 1.0F; })) return RopeScaling();
  RopeScaling scaling;
  scaling.kind = RopeScaling::Kind::llama3;
  scaling.factor = *std::max_element(factors.begin(), factors.end());
  scaling.low_freq_factor = 1.0F;
  scaling.high_freq_factor = 4.0F;
  const auto fits = [&](Index positions) {
    scaling.original_max_position_embeddings = positions;
    const std::vector<float> expected = llama3_rope_factors(static_cast<Index>(2 * factors.size()), theta, scaling);
    return std::equal(factors.begin(), factors.end(), expected.begin(),
                      [](float stored, float made) { return std::fabs(stored - made) <= kTolerance * made; });
  };
  if (fits(kUsual)) return scaling;
  for (Index positions = kLeast; positions <= kMost; positions *= 2) {
    if (fits(positions)) return scaling;
  }
  return std::nullopt;
}

}  // namespace samba
