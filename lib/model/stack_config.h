// The configuration of any stack of blocks: embedding, layers, final norm, output head.
//
// A stack whose layers are named by strings is the reference's SambaStack (samba_config.h); one whose layers are
// objects is a general stack:
//
//   {"vocab": 256, "d_model": 64, "final_norm": "rmsnorm", "norm_eps": 1e-5, "tie_embeddings": true,
//    "layers": [{"kind": "transformer", "n_heads": 4, "intermediate": 192, "window": 64}, {"kind": "mamba2"}]}
//
// Both run on the same code; docs/stack_arithmetic.md states what a general stack adds to spec 60.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "samba/blocks/block.h"
#include "samba/blocks/mamba2/mamba2_block.h"
#include "samba/blocks/transformer/transformer_options.h"
#include "samba/model/samba_config.h"

namespace samba {

enum class BlockKind { transformer, mamba1, mamba2, mamba3 };

std::string_view block_kind_name(BlockKind kind);  // "transformer", ...

// The arithmetic of a stack. fp32_v2 differs from fp32_v1 in the gradient of Mamba-3 layers alone
// (docs/spec-extensions.md section 2).
enum class StackProfile { fp32_v1, fp32_v2 };

struct LayerConfig {
  BlockKind kind = BlockKind::transformer;
  TransformerOptions transformer;  // kind transformer alone
  Mamba2Options mamba2;            // kind mamba2 alone

  bool operator==(const LayerConfig&) const = default;
};

struct StackConfig {
  StackConfig() = default;
  // The same stack: its layers with the options of the SambaStack.
  StackConfig(const SambaConfig& config);  // NOLINT(google-explicit-constructor): both name a model

  Index vocab = 0;
  Index d_model = 0;
  std::vector<LayerConfig> layers;
  TransformerNorm final_norm = TransformerNorm::rmsnorm;
  bool final_norm_bias = false;  // layernorm alone
  float norm_eps = 1e-5F;        // of the final norm
  bool tie_embeddings = true;
  std::optional<float> embedding_scale;
  std::optional<float> logits_softcap;
  float dropout = 0.0F;  // in [0, 1)

  StackProfile profile = StackProfile::fp32_v1;

  std::optional<SambaConfig> samba;  // set: this is a SambaStack, and these are its ten fields

  bool operator==(const StackConfig&) const = default;
};

// What states and checkpoints of the model are made with: "samba-stack.fp32.v1", "samba.stack.fp32.v1",
// "samba.fp32.v2".
std::string_view profile_name(const StackConfig& config);

// The tensors of a layer in registry order.
std::vector<WeightSpec> layer_weight_specs(const StackConfig& config, const LayerConfig& layer);

// Why a stack has no gradient, and where: {"/layers/2/numeric_profile", "..."}; empty when it can be trained.
struct InferenceOnlyReason {
  std::string pointer;
  std::string text;
};
std::optional<InferenceOnlyReason> inference_only_reason(const StackConfig& config);

// The most positions a decode state of this model can hold: the least of its transformer layers' max_positions and of
// the positions whose rotary angles stay below 8192; without such a layer the largest int32.
Index position_limit(const StackConfig& config);
// The largest max_positions of a layer that its rotary angles do not reach; 0 when every layer reaches its own.
Index unreachable_positions(const StackConfig& config);

// Reads either form. Refusals are Error(value) that begin with the JSON pointer of the field below `pointer`
// ("/model/layers/2/window: must be ..."); an unknown key comes with the nearest known one.
StackConfig stack_config_from_json(const nlohmann::json& object, const std::string& pointer = "");

// Every field with its default filled in, numbers as the doubles that equal their float32 values (the profile only when
// it is not that of the form); reading it gives the same configuration. A SambaStack gives its ten fields.
nlohmann::json config_to_json(const StackConfig& config);
// The same in the order in which people write it.
nlohmann::ordered_json config_to_ordered_json(const StackConfig& config);

}  // namespace samba
