#include "samba/convert/mamba_ssm_config.h"

#include "samba/blocks/mamba1/mamba1_block.h"
#include "samba/convert/foreign_config.h"
#include "samba/core/error.h"

namespace samba {

namespace {

using nlohmann::json;

// How weights are drawn, and how kernels cut the work: nothing for a trained model.
void ignore_initial(ForeignConfig& fields) {
  fields.ignore({"dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "use_fast_path", "use_mem_eff_path",
                 "conv_init", "A_init_range", "chunk_size", "layer"});
}

void read_mamba1(ForeignConfig& fields, Index d_model) {
  fields.must_be("d_state", 16);
  fields.must_be("d_conv", 4);
  fields.must_be("conv_bias", true);
  const json& rank = fields.get("dt_rank");
  if (!rank.is_null() && rank != "auto" && rank != (d_model + 15) / 16) {
    fields.refuse("dt_rank", "auto, or d_model / 16 = " + std::to_string((d_model + 15) / 16));
  }
}

Mamba2Options read_mamba2(ForeignConfig& fields, Index d_model) {
  fields.must_be("d_state", 128);
  fields.must_be("d_conv", 4);
  fields.must_be("headdim", 64);
  fields.must_be("ngroups", 1);
  fields.must_be("d_ssm", 2 * d_model);
  fields.must_be("D_has_hdim", false);
  fields.must_be("rmsnorm", true);
  fields.must_be("norm_before_gate", false);
  fields.must_be("conv_bias", true);
  const json& limit = fields.get("dt_limit");
  if (limit.is_null()) return {};
  try {
    return parse_mamba2_options({{"dt_limit", limit}});
  } catch (const Error& error) {
    refuse_value(fields.source() + ": ssm_cfg." + error.what());
  }
}

void read_mamba3(ForeignConfig& fields) {
  fields.must_be("d_state", 128);
  fields.must_be("headdim", 64);
  fields.must_be("ngroups", 1);
  fields.must_be("rope_fraction", 0.5);
  fields.must_be("A_floor", 1e-4);
  fields.must_be("is_outproj_norm", false);
  fields.must_be("is_mimo", false);
  fields.ignore({"mimo_rank", "fuse_pregate_headwise_norm", "dropout"});
}

LayerConfig read_layer(const json& config, const std::string& source, Index d_model) {
  static const json kEmpty = json::object();
  ForeignConfig fields(config.is_null() ? kEmpty : config, source, "ssm_cfg.");
  const std::string kind = fields.text("layer", "Mamba1");
  LayerConfig layer;
  if (kind == "Mamba1") {
    layer.kind = BlockKind::mamba1;
    read_mamba1(fields, d_model);
  } else if (kind == "Mamba2") {
    layer.kind = BlockKind::mamba2;
    layer.mamba2 = read_mamba2(fields, d_model);
  } else if (kind == "Mamba3") {
    layer.kind = BlockKind::mamba3;
    read_mamba3(fields);
  } else {
    fields.refuse("layer", "Mamba1, Mamba2, Mamba3");
  }
  fields.must_be("expand", 2);
  fields.must_be("bias", false);
  ignore_initial(fields);
  fields.finish();
  return layer;
}

}  // namespace

bool is_mamba_ssm_config(const json& config) {
  return config.is_object() && !config.contains("model_type") && config.contains("d_model") &&
         config.contains("n_layer");
}

StackConfig parse_mamba_ssm_config(const json& config, const std::string& source) {
  constexpr Index kMostLayers = 65536;
  ForeignConfig fields(config, source);
  StackConfig stack;
  stack.d_model = fields.count("d_model", std::nullopt);
  const Index layers = fields.count("n_layer", std::nullopt);
  if (layers > kMostLayers) fields.refuse("n_layer", "at most " + std::to_string(kMostLayers));
  fields.must_be("d_intermediate", 0);
  fields.must_be("attn_layer_idx", json::array());
  fields.must_be("rms_norm", true);
  fields.ignore({"attn_cfg", "residual_in_fp32", "fused_add_norm"});
  stack.layers.assign(static_cast<std::size_t>(layers), read_layer(fields.get("ssm_cfg"), source, stack.d_model));
  stack.norm_eps = kMamba1NormEpsilon;
  // The tables have the padded number of rows; every one of them is a token here.
  const Index multiple = fields.count("pad_vocab_size_multiple", 8);
  const Index vocab = fields.count("vocab_size", 50277);
  stack.vocab = (vocab + multiple - 1) / multiple * multiple;
  stack.tie_embeddings = fields.flag("tie_embeddings", true);
  fields.finish();
  try {
    return stack_config_from_json(config_to_json(stack));
  } catch (const Error& error) {
    refuse_value(source + ": the model cannot be represented: " + error.what());
  }
}

}  // namespace samba
