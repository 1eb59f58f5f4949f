// The table of blocks that are compared with their double-precision twins: kinds, option mixes and sizes, with weights
// and states as in a model.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "block_fixture.h"
#include "double_twins/mamba1.h"
#include "double_twins/mamba2.h"
#include "double_twins/mamba3.h"
#include "double_twins/transformer.h"
#include "samba/blocks/mamba1/mamba1_block.h"
#include "samba/blocks/mamba2/mamba2_block.h"
#include "samba/blocks/mamba3/mamba3_block.h"
#include "samba/blocks/module.h"

namespace samba::twin {

struct TwinCase {
  std::string name;
  std::string kind;
  nlohmann::json options;
  std::vector<WeightSpec> specs;
  std::shared_ptr<const Twin> twin;
  Index d_model = 0;
  Index batch = 2;
  Index length = 7;
  Index tokens_before = 0;    // cached or buffered in the state that is not empty
  bool input_states = false;  // mamba3: such a state is given by set_input_states

  // The longest serial chain: the widest contraction or the sequence.
  std::size_t chain() const {
    Index longest = length + tokens_before;
    for (const WeightSpec& spec : specs) longest = std::max(longest, spec.shape.back());
    return static_cast<std::size_t>(longest);
  }
};

// Matrices with rows of gain 1.3, biases and norms as after some training. Names may have a prefix "layers.<i>.".
inline ArrayMap model_weights(const std::vector<WeightSpec>& specs, bool offset_norm, std::uint32_t seed = 0) {
  ArrayMap weights;
  for (const WeightSpec& spec : specs) {
    const std::size_t prefix = spec.name.starts_with("layers.") ? spec.name.find('.', 7) + 1 : 0;
    const std::string name = spec.name.substr(prefix);
    float mean = 0.0F, deviation = 0.3F;
    if (name == "A_log") {
      mean = 0.7F, deviation = 0.5F;
    } else if (name == "dt_bias" || name == "dt_proj.bias") {
      mean = -2.0F, deviation = 0.7F;
    } else if (name == "B_bias" || name == "C_bias" || name == "D") {
      mean = 1.0F;
    } else if (name == "conv1d.weight") {
      deviation = 0.5F;
    } else if (spec.shape.size() == 2) {
      deviation = 1.3F / std::sqrt(static_cast<float>(spec.shape[1]));
    } else if (name.ends_with(".weight")) {
      mean = offset_norm ? 0.0F : 1.0F, deviation = 0.2F;
    }
    const auto stream = seed + static_cast<std::uint32_t>(weights.size());
    weights.emplace(spec.name, drawn(stream, spec.shape, mean, deviation));
  }
  return weights;
}

inline ArrayMap model_weights(const TwinCase& of, std::uint32_t seed = 0) {
  return model_weights(of.specs, of.options.value("norm", "") == "rmsnorm_offset", seed);
}

// Every third token is small, so that the epsilon of a norm matters.
inline Array model_input(const TwinCase& of, std::uint32_t stream) {
  Array x = drawn(stream, {of.batch, of.length, of.d_model});
  for (std::size_t i = 0; i < x.floats().size(); ++i) {
    if (i / at(of.d_model) % 3 == 1) x.floats()[i] *= 0x1p-6F;
  }
  return x;
}

// Overwrites a new state with that of a sequence that has begun.
inline void begin_sequence(const TwinCase& of, ModuleState& state) {
  ArrayMap pieces = state.pieces();
  std::uint32_t stream = 500;
  for (auto& [name, array] : pieces) {
    const bool logarithm = name == "buffer_adt";
    array = drawn(stream++, array.shape(), name == "buffer_dtraw" ? -2.0F : 0.0F, name == "theta" ? 2.0F : 0.6F);
    for (float& value : array.floats()) {
      if (name == "buffer_dt" || logarithm) value = std::abs(value) * (logarithm ? -0.5F : 0.5F);
      if (name == "buffer_sig") value = 1.0F / (1.0F + std::exp(-value));
    }
  }
  if (of.input_states) {
    state.set_input_states(pieces.at("theta"), pieces.at("h"), pieces.at("pending_k"), pieces.at("pending_v"));
  } else if (of.kind == "transformer") {
    state.set(views(pieces), {{"cached_tokens", of.tokens_before}});
  } else if (of.kind == "mamba1") {
    state.set(views(pieces), {});
  } else {
    state.set(views(pieces), {{"buffered_tokens", of.tokens_before}});
  }
}

inline TwinCase transformer_case(const std::string& name, const TransformerOptions& options, Index length = 9,
                                 Index tokens_before = 5) {
  TwinCase result;
  result.name = "transformer " + name;
  result.kind = "transformer";
  result.options = transformer_options_to_json(options);
  result.specs = options.weight_specs();
  result.twin = std::make_shared<TransformerTwin>(options);
  result.d_model = options.d_model;
  result.length = length;
  result.tokens_before = tokens_before;
  return result;
}

inline TransformerOptions transformer_sizes(Index n_heads, Index n_kv_heads, Index head_dim, Index intermediate,
                                            Index window = 0) {
  TransformerOptions options;
  options.n_heads = n_heads;
  options.n_kv_heads = n_kv_heads;
  options.head_dim = head_dim;
  options.d_model = n_heads * head_dim;
  options.intermediate = intermediate;
  options.window = window;
  return options;
}

inline std::vector<TwinCase> transformer_cases() {
  TransformerOptions gemma = transformer_sizes(4, 1, 6, 20);
  gemma.norm = TransformerNorm::rmsnorm_offset;
  gemma.mlp = TransformerMlp::geglu_tanh;
  gemma.attn_softcap = 2.0F;
  TransformerOptions gemma_heads = gemma;
  gemma_heads.qk_norm = true;
  gemma_heads.norm_eps = 1e-5F;
  gemma_heads.window = 4;
  TransformerOptions gpt = transformer_sizes(3, 3, 8, 30);
  gpt.norm = TransformerNorm::layernorm;
  gpt.norm_bias = gpt.qkv_bias = gpt.o_bias = gpt.mlp_bias = true;
  gpt.norm_eps = 1e-5F;
  gpt.mlp = TransformerMlp::gelu;
  gpt.rope_dim = 4;
  TransformerOptions plain_norm = gpt;
  plain_norm.norm_bias = plain_norm.o_bias = false;
  plain_norm.mlp = TransformerMlp::gelu_tanh;
  TransformerOptions llama3 = transformer_sizes(2, 1, 16, 24);
  llama3.rope_theta = 500000.0F;
  llama3.rope_scaling = {RopeScaling::Kind::llama3, 8.0F, 1.0F, 4.0F, 64};
  llama3.norm_eps = 1e-5F;
  TransformerOptions stretched = transformer_sizes(4, 2, 4, 18, 3);
  stretched.rope_scaling = {RopeScaling::Kind::linear, 4.0F};
  stretched.qk_norm = true;
  stretched.mlp = TransformerMlp::geglu;
  stretched.mlp_bias = true;
  TransformerOptions biased = transformer_sizes(2, 2, 6, 10, 5);
  biased.qkv_bias = biased.o_bias = true;
  biased.rope_theta = 1000.0F;
  return {transformer_case("default", transformer_sizes(4, 4, 6, 20)),
          transformer_case("grouped heads", transformer_sizes(6, 2, 4, 33), 11),
          transformer_case("window 4", transformer_sizes(4, 2, 6, 20, 4), 13, 6),
          transformer_case("window 1", transformer_sizes(2, 1, 6, 9, 1), 5, 3),
          transformer_case("one wide head", transformer_sizes(1, 1, 132, 140), 6, 2),
          transformer_case("140 tokens", transformer_sizes(2, 1, 4, 6), 140, 0),
          transformer_case("gemma", gemma),
          transformer_case("gemma with head norms and a window", gemma_heads, 9, 6),
          transformer_case("layernorm, gelu, all biases, partial rotation", gpt),
          transformer_case("layernorm without bias, gelu_tanh", plain_norm),
          transformer_case("llama3 rotation", llama3, 30, 20),
          transformer_case("linear rotation, head norms, geglu", stretched, 9, 7),
          transformer_case("biases in attention", biased)};
}

inline TwinCase mamba_case(const std::string& name, const std::string& kind, Index d_model, Index batch, Index length,
                           Index tokens_before) {
  TwinCase result;
  result.name = name;
  result.kind = kind;
  result.options = nlohmann::json::object();
  result.d_model = d_model;
  result.batch = batch;
  result.length = length;
  result.tokens_before = tokens_before;
  if (kind == "mamba1") {
    result.specs = Mamba1Block::make_weight_specs(d_model, ConvWeightShape::with_group_axis);
    result.twin = std::make_shared<Mamba1Twin>(d_model);
  } else if (kind == "mamba2") {
    result.specs = Mamba2Block::make_weight_specs(d_model, ConvWeightShape::with_group_axis);
    result.twin = std::make_shared<Mamba2Twin>(d_model, 0.0, std::numeric_limits<double>::infinity());
  } else {
    result.specs = Mamba3Block::make_weight_specs(d_model);
    result.twin = std::make_shared<Mamba3Twin>(d_model);
  }
  return result;
}

inline std::vector<TwinCase> mamba_cases() {
  TwinCase limited = mamba_case("mamba2, active limits of dt", "mamba2", 32, 2, 9, 4);
  limited.options = {{"dt_limit", {0.125, 0.25}}};
  limited.twin = std::make_shared<Mamba2Twin>(32, 0.125, 0.25);
  TwinCase given = mamba_case("mamba3, input states", "mamba3", 32, 2, 9, 0);
  given.input_states = true;
  return {mamba_case("mamba1", "mamba1", 9, 2, 12, 0),
          mamba_case("mamba1, rank 3, long", "mamba1", 40, 1, 70, 0),
          mamba_case("mamba1, one channel", "mamba1", 1, 3, 5, 0),
          mamba_case("mamba2", "mamba2", 32, 2, 9, 3),
          mamba_case("mamba2, two heads", "mamba2", 64, 1, 12, 250),
          mamba_case("mamba2, over a chunk border", "mamba2", 32, 1, 262, 0),
          limited,
          mamba_case("mamba3", "mamba3", 32, 2, 9, 3),
          mamba_case("mamba3, two heads over a chunk border", "mamba3", 64, 1, 12, 60),
          mamba_case("mamba3, three chunks", "mamba3", 32, 1, 135, 0),
          given};
}

inline std::vector<TwinCase> every_case() {
  std::vector<TwinCase> cases = transformer_cases();
  for (TwinCase& one : mamba_cases()) cases.push_back(std::move(one));
  return cases;
}

}  // namespace samba::twin
