// Reading config.json. What the fields mean, and their values where config.json has none, is that of transformers.
#include "samba/convert/huggingface_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "samba/blocks/mamba1/mamba1_block.h"
#include "samba/convert/foreign_config.h"
#include "samba/core/error.h"
#include "samba/core/json_fields.h"

namespace samba {

namespace {

using nlohmann::json;
using Type = HuggingFaceType;

constexpr Index kMostLayers = 65536;

constexpr std::array<std::pair<Type, std::string_view>, 10> kTypes = {{{Type::llama, "llama"},
                                                                       {Type::mistral, "mistral"},
                                                                       {Type::qwen2, "qwen2"},
                                                                       {Type::qwen3, "qwen3"},
                                                                       {Type::gemma, "gemma"},
                                                                       {Type::starcoder2, "starcoder2"},
                                                                       {Type::stablelm, "stablelm"},
                                                                       {Type::phi3, "phi3"},
                                                                       {Type::mamba, "mamba"},
                                                                       {Type::mamba2, "mamba2"}}};

// Fields of every configuration that do not change the logits.
void ignore_common(ForeignConfig& fields) {
  fields.ignore({"model_type", "architectures", "samba", "auto_map", "transformers_version", "transformers.js_config",
                 "torch_dtype", "dtype", "torchscript", "use_bfloat16", "use_cache", "initializer_range",
                 "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id",
                 "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "id2label", "label2id",
                 "problem_type", "finetuning_task", "task_specific_params", "tokenizer_class", "prefix", "name_or_path",
                 "return_dict", "output_attentions", "output_hidden_states", "chunk_size_feed_forward",
                 "attn_implementation", "attention_dropout", "pretraining_tp", "is_llama_config", "unsloth_version",
                 "unsloth_fixed",
                 // generation, as old versions kept it here
                 "max_length", "min_length", "do_sample", "num_beams", "num_beam_groups", "num_return_sequences",
                 "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty",
                 "diversity_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"});
  fields.must_be("is_encoder_decoder", false);
  fields.must_be("is_decoder", false);
  fields.must_be("add_cross_attention", false);
}

// The gate's or the hidden layer's function as an option of the block.
TransformerMlp mlp_of(ForeignConfig& fields, const std::string& fallback, bool gated) {
  const std::string name = fields.text("hidden_act", fallback);
  if (gated && (name == "silu" || name == "swish")) return TransformerMlp::swiglu;
  if (name == "gelu") return gated ? TransformerMlp::geglu : TransformerMlp::gelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") {
    return gated ? TransformerMlp::geglu_tanh : TransformerMlp::gelu_tanh;
  }
  fields.refuse("hidden_act", gated ? "silu, gelu, gelu_pytorch_tanh" : "gelu, gelu_pytorch_tanh");
}

// rope_parameters (transformers 5), or rope_theta, rope_scaling and partial_rotary_factor (4).
class RopeFields {
 public:
  RopeFields(ForeignConfig& fields, Type type, TransformerOptions& options)
      : fields_(fields), type_(type), options_(options) {}

  void read() {
    const std::string name = fields_.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
    const json& given = fields_.get(name);
    fields_.get("rope_scaling");
    static const json kEmpty = json::object();
    ForeignConfig rope(given.is_null() ? kEmpty : given, fields_.source(), name + ".");
    const double theta = rope.number("rope_theta", fields_.number("rope_theta", 10000.0));
    options_.rope_theta = static_cast<float>(theta);
    const std::string old_kind = rope.text("type", "default");
    const std::string kind = rope.text("rope_type", old_kind);
    read_kind(rope, kind);
    read_partial(rope);
    rope.finish();
  }

 private:
  void read_kind(ForeignConfig& rope, const std::string& kind) {
    RopeScaling& scaling = options_.rope_scaling;
    if (kind == "default") {
      rope.ignore({"factor", "original_max_position_embeddings"});
      return;
    }
    const bool known = (kind == "linear" || kind == "llama3") && type_ != Type::phi3;
    if (!known) {
      rope.refuse(rope.has("rope_type") ? "rope_type" : "type",
                  type_ == Type::phi3 ? "default" : "default, linear, llama3");
    }
    scaling.kind = kind == "linear" ? RopeScaling::Kind::linear : RopeScaling::Kind::llama3;
    scaling.factor = static_cast<float>(rope.number("factor", std::nullopt));
    if (kind == "linear") {
      rope.ignore({"original_max_position_embeddings"});
      return;
    }
    scaling.low_freq_factor = static_cast<float>(rope.number("low_freq_factor", std::nullopt));
    scaling.high_freq_factor = static_cast<float>(rope.number("high_freq_factor", std::nullopt));
    scaling.original_max_position_embeddings = rope.count("original_max_position_embeddings", options_.max_positions);
  }

  void read_partial(ForeignConfig& rope) {
    const bool partial = type_ == Type::stablelm || type_ == Type::phi3;
    const double outside = fields_.number("partial_rotary_factor", type_ == Type::stablelm ? 0.25 : 1.0);
    const double factor = rope.number("partial_rotary_factor", outside);
    if (!partial && factor != 1.0) {
      refuse_value(fields_.source() + ": partial_rotary_factor is " + json(factor).dump() + "; accepted for " +
                   std::string(huggingface_type_name(type_)) + ": 1.0");
    }
    const auto rotated = static_cast<Index>(static_cast<double>(options_.head_dim) * factor);
    if (!(factor > 0.0 && factor <= 1.0) || rotated < 2 || rotated % 2 != 0) {
      refuse_value(fields_.source() + ": partial_rotary_factor " + json(factor).dump() + " of a head of " +
                   std::to_string(options_.head_dim) + " must rotate an even number of columns");
    }
    options_.rope_dim = rotated;
  }

  ForeignConfig& fields_;
  Type type_;
  TransformerOptions& options_;
};

// layer_types of Qwen, or the same told by use_sliding_window and max_window_layers: a window for each layer.
std::vector<Index> qwen_windows(ForeignConfig& fields, Index layers) {
  const Index window = fields.flag("use_sliding_window", false) ? fields.count("sliding_window", 4096) : 0;
  fields.ignore({"sliding_window"});
  const json& first = fields.get("max_window_layers");
  if (!first.is_null() && (!first.is_number_integer() || !(first >= 0))) {
    fields.refuse("max_window_layers", "an integer of at least 0");
  }
  const Index full = first.is_null() ? 28 : first.get<Index>();
  std::vector<Index> windows(static_cast<std::size_t>(layers), 0);
  const json& types = fields.get("layer_types");
  if (types.is_null()) {
    for (Index i = 0; i < layers; ++i) windows[static_cast<std::size_t>(i)] = i >= full ? window : 0;
    return windows;
  }
  if (!types.is_array() || types.size() != windows.size()) {
    fields.refuse("layer_types", "a list with one type for each of the " + std::to_string(layers) + " layers");
  }
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const bool sliding = types[i] == "sliding_attention";
    if (!sliding && types[i] != "full_attention") {
      fields.refuse("layer_types", "full_attention and sliding_attention");
    }
    if (sliding && window == 0) fields.refuse("use_sliding_window", "true, since layer_types names sliding_attention");
    windows[i] = sliding ? window : 0;
  }
  return windows;
}

// What the families of transformer layers differ in where config.json says nothing.
struct Defaults {
  Index kv_heads = 0;  // 0: as many as heads
  Index head_dim = 0;  // 0: hidden_size / heads
  Index positions = 2048;
  const char* epsilon_name = "rms_norm_eps";
  double epsilon = 1e-6;
  bool tied = false;
};

Defaults defaults_of(Type type) {
  switch (type) {
    case Type::mistral:
      return {8, 0, 131072, "rms_norm_eps", 1e-6, false};
    case Type::qwen2:
      return {32, 0, 32768, "rms_norm_eps", 1e-6, false};
    case Type::qwen3:
      return {32, 128, 32768, "rms_norm_eps", 1e-6, false};
    case Type::gemma:
      return {16, 256, 8192, "rms_norm_eps", 1e-6, true};
    case Type::starcoder2:
      return {2, 0, 4096, "norm_epsilon", 1e-5, true};
    case Type::stablelm:
      return {32, 0, 4096, "layer_norm_eps", 1e-5, false};
    case Type::phi3:
      return {0, 0, 4096, "rms_norm_eps", 1e-5, false};
    default:
      return {};
  }
}

void read_sizes(ForeignConfig& fields, Type type, TransformerOptions& options) {
  const Defaults defaults = defaults_of(type);
  options.d_model = fields.count("hidden_size", std::nullopt);
  options.n_heads = fields.count("num_attention_heads", std::nullopt);
  const bool as_heads = defaults.kv_heads == 0 || fields.is_null("num_key_value_heads");
  options.n_kv_heads = fields.count("num_key_value_heads", as_heads ? options.n_heads : defaults.kv_heads);
  if (!fields.has("head_dim") && defaults.head_dim == 0 && options.d_model % options.n_heads != 0) {
    fields.refuse("hidden_size", "a multiple of num_attention_heads");
  }
  const Index even = options.d_model / options.n_heads;
  options.head_dim = fields.count("head_dim", defaults.head_dim == 0 ? even : defaults.head_dim);
  if (type == Type::stablelm && options.head_dim != even) {
    fields.refuse("head_dim", "hidden_size / num_attention_heads");
  }
  options.intermediate = fields.count("intermediate_size", std::nullopt);
  options.max_positions = fields.count("max_position_embeddings", defaults.positions);
  options.norm_eps = static_cast<float>(fields.number(defaults.epsilon_name, defaults.epsilon));
}

void read_family(ForeignConfig& fields, Type type, TransformerOptions& options, StackConfig& stack) {
  options.mlp = mlp_of(fields, type == Type::gemma || type == Type::starcoder2 ? "gelu_pytorch_tanh" : "silu",
                       type != Type::starcoder2);
  switch (type) {
    case Type::llama:
      options.qkv_bias = options.o_bias = fields.flag("attention_bias", false);
      options.mlp_bias = fields.flag("mlp_bias", false);
      fields.must_be("rope_interleaved", false);
      break;
    case Type::mistral:
      fields.must_be("attention_bias", false);
      break;
    case Type::qwen2:
      options.qkv_bias = true;
      fields.must_be("use_mrope", false);
      break;
    case Type::qwen3:
      options.qk_norm = true;
      options.qkv_bias = options.o_bias = fields.flag("attention_bias", false);
      break;
    case Type::gemma:
      // "gelu" is what the first releases wrote for the tanh form.
      if (options.mlp == TransformerMlp::geglu) options.mlp = TransformerMlp::geglu_tanh;
      if (fields.has("hidden_activation")) fields.must_be("hidden_activation", "gelu_pytorch_tanh");
      options.norm = stack.final_norm = TransformerNorm::rmsnorm_offset;
      options.qkv_bias = options.o_bias = fields.flag("attention_bias", false);
      stack.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(options.d_model)));
      fields.must_be("use_bidirectional_attention", false);
      break;
    case Type::starcoder2:
      options.norm = stack.final_norm = TransformerNorm::layernorm;
      options.norm_bias = stack.final_norm_bias = true;
      options.qkv_bias = options.o_bias = options.mlp_bias = fields.flag("use_bias", true);
      fields.ignore({"activation_function", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32",
                     "scale_attn_weights", "layer_norm_epsilon", "attn_pdrop", "embd_pdrop", "residual_dropout",
                     "embedding_dropout"});
      fields.must_be("mlp_type", "default");
      fields.must_be("norm_type", "layer_norm");
      break;
    case Type::stablelm:
      options.norm = stack.final_norm = TransformerNorm::layernorm;
      options.norm_bias = stack.final_norm_bias = true;
      options.qkv_bias = fields.flag("use_qkv_bias", false);
      fields.must_be("qk_layernorm", false);
      fields.must_be("use_parallel_residual", false);
      fields.ignore({"hidden_dropout"});
      break;
    case Type::phi3:
      fields.must_be("attention_bias", false);
      fields.ignore({"original_max_position_embeddings", "resid_pdrop", "embd_pdrop"});
      break;
    default:
      break;
  }
}

StackConfig read_transformer(ForeignConfig& fields, Type type) {
  StackConfig stack;
  TransformerOptions options;
  read_sizes(fields, type, options);
  const Index layers = fields.count("num_hidden_layers", std::nullopt);
  if (layers > kMostLayers) fields.refuse("num_hidden_layers", "at most " + std::to_string(kMostLayers));
  read_family(fields, type, options, stack);
  RopeFields(fields, type, options).read();
  std::vector<Index> windows(static_cast<std::size_t>(layers), 0);
  if (type == Type::qwen2 || type == Type::qwen3) {
    windows = qwen_windows(fields, layers);
  } else if (type == Type::mistral || type == Type::starcoder2 || type == Type::phi3) {
    // transformers takes a field that is absent for its own default, one that is null for no window.
    const bool mistral_default = type == Type::mistral && !fields.is_null("sliding_window");
    const Index absent = mistral_default ? 4096 : 0;
    const Index window = fields.has("sliding_window") ? fields.count("sliding_window", std::nullopt) : absent;
    fields.ignore({"sliding_window"});
    windows.assign(windows.size(), window);
  }
  for (const Index window : windows) {
    options.window = window;
    LayerConfig layer;
    layer.transformer = options;
    stack.layers.push_back(layer);
  }
  stack.d_model = options.d_model;
  stack.norm_eps = options.norm_eps;
  stack.vocab = fields.count("vocab_size", std::nullopt);
  stack.tie_embeddings = fields.flag("tie_word_embeddings", defaults_of(type).tied);
  return stack;
}

// What the two Mamba blocks have one value for.
void read_fixed(ForeignConfig& fields, Type type, Index d_model) {
  fields.must_be("state_size", type == Type::mamba ? 16 : 128);
  fields.must_be("conv_kernel", 4);
  fields.must_be("expand", 2);
  fields.must_be("use_bias", false);
  fields.must_be("use_conv_bias", true);
  fields.must_be("hidden_act", "silu");
  const double epsilon = fields.number("layer_norm_epsilon", 1e-5);
  if (static_cast<float>(epsilon) != kMamba1NormEpsilon) fields.refuse("layer_norm_epsilon", "1e-05");
  const json& rank = fields.get("time_step_rank");
  if (type == Type::mamba && !rank.is_null() && rank != "auto" && rank != (d_model + 15) / 16) {
    fields.refuse("time_step_rank", "auto, or hidden_size / 16 = " + std::to_string((d_model + 15) / 16));
  }
  if (type == Type::mamba) {
    fields.must_be("intermediate_size", 2 * d_model);
    return;
  }
  if (!fields.has("n_groups")) fields.refuse("n_groups", "1");
  fields.must_be("n_groups", 1);
  fields.must_be("head_dim", 64);
  if (!fields.has("num_heads")) fields.refuse("num_heads", std::to_string(2 * d_model / 64));
  fields.must_be("num_heads", 2 * d_model / 64);
}

Mamba2Options read_time_step_limit(ForeignConfig& fields) {
  const json& limit = fields.get("time_step_limit");
  if (limit.is_null()) return {};
  const auto number = [](const json& value) { return value.is_number() || value == "inf" || value == "-inf"; };
  if (!limit.is_array() || limit.size() != 2 || !number(limit[0]) || !number(limit[1])) {
    fields.refuse("time_step_limit", "two numbers");
  }
  try {
    return parse_mamba2_options({{"dt_limit", limit}});
  } catch (const Error& error) {
    refuse_value(fields.source() + ": time_step_limit: " + error.what());
  }
}

StackConfig read_mamba(ForeignConfig& fields, Type type) {
  StackConfig stack;
  stack.d_model = fields.count("hidden_size", std::nullopt);
  const Index layers = fields.count("num_hidden_layers", std::nullopt);
  if (layers > kMostLayers) fields.refuse("num_hidden_layers", "at most " + std::to_string(kMostLayers));
  read_fixed(fields, type, stack.d_model);
  LayerConfig layer;
  layer.kind = type == Type::mamba ? BlockKind::mamba1 : BlockKind::mamba2;
  if (type == Type::mamba2) layer.mamba2 = read_time_step_limit(fields);
  stack.layers.assign(static_cast<std::size_t>(layers), layer);
  stack.norm_eps = kMamba1NormEpsilon;
  stack.vocab = fields.count("vocab_size", std::nullopt);
  stack.tie_embeddings = fields.flag("tie_word_embeddings", type == Type::mamba);
  fields.ignore({"residual_in_fp32", "time_step_scale", "time_step_min", "time_step_max", "time_step_init_scheme",
                 "time_step_floor", "rescale_prenorm_residual", "use_mambapy", "use_associative_scan", "chunk_size",
                 "use_mamba_kernels", "fused_add_norm", "pad_vocab_size_multiple"});
  fields.must_be("d_model", stack.d_model);
  fields.must_be("d_inner", 2 * stack.d_model);
  fields.must_be("n_layer", layers);
  fields.must_be("rms_norm", true);
  return stack;
}

}  // namespace

std::vector<Type> huggingface_types() {
  std::vector<Type> types;
  for (const auto& [type, name] : kTypes) types.push_back(type);
  return types;
}

std::string_view huggingface_type_name(Type type) {
  for (const auto& [candidate, name] : kTypes) {
    if (candidate == type) return name;
  }
  throw Error(ErrorKind::internal, "unknown model type");
}

std::optional<Type> find_huggingface_type(std::string_view name) {
  for (const auto& [type, candidate] : kTypes) {
    if (candidate == name) return type;
  }
  return std::nullopt;
}

HuggingFaceConfig parse_huggingface_config(const json& config, const std::string& source) {
  ForeignConfig fields(config, source);
  const std::string name = fields.text("model_type", "");
  const auto type = find_huggingface_type(name);
  if (!type) {
    std::string accepted;
    for (const auto& [candidate, word] : kTypes) accepted += (accepted.empty() ? "" : ", ") + std::string(word);
    fields.refuse("model_type", accepted);
  }
  ignore_common(fields);
  const bool mamba = *type == Type::mamba || *type == Type::mamba2;
  StackConfig stack = mamba ? read_mamba(fields, *type) : read_transformer(fields, *type);
  fields.finish();
  try {
    return {*type, stack_config_from_json(config_to_json(stack))};
  } catch (const Error& error) {
    refuse_value(source + ": the model cannot be represented: " + error.what());
  }
}

}  // namespace samba
