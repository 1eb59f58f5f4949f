// Writing config.json. Whether a type can hold a stack is not told by rules of its own: the configuration is made from
// the stack's first layer, read again, and must give the same stack.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "samba/convert/foreign_config.h"
#include "samba/convert/huggingface_config.h"
#include "samba/core/error.h"
#include "samba/core/json_fields.h"

namespace samba {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Type = HuggingFaceType;

// The shortest decimal that is this float32: 1e-05, not 9.999999747378752e-06.
json short_number(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  double number = 0.0;
  std::from_chars(text, end, number);
  return number;
}

std::string architecture(Type type) {
  switch (type) {
    case Type::llama:
      return "LlamaForCausalLM";
    case Type::mistral:
      return "MistralForCausalLM";
    case Type::qwen2:
      return "Qwen2ForCausalLM";
    case Type::qwen3:
      return "Qwen3ForCausalLM";
    case Type::gemma:
      return "GemmaForCausalLM";
    case Type::starcoder2:
      return "Starcoder2ForCausalLM";
    case Type::stablelm:
      return "StableLmForCausalLM";
    case Type::phi3:
      return "Phi3ForCausalLM";
    case Type::mamba:
      return "MambaForCausalLM";
    case Type::mamba2:
      return "Mamba2ForCausalLM";
  }
  throw Error(ErrorKind::internal, "unknown model type");
}

const char* activation(TransformerMlp mlp) {
  switch (mlp) {
    case TransformerMlp::swiglu:
      return "silu";
    case TransformerMlp::geglu:
    case TransformerMlp::gelu:
      return "gelu";
    default:
      return "gelu_pytorch_tanh";
  }
}

// Both spellings, so that transformers 4 and 5 read it.
void write_rope(const TransformerOptions& options, bool partial, ordered_json& config) {
  const RopeScaling& scaling = options.rope_scaling;
  ordered_json rope = {{"rope_type", "default"}};
  if (scaling.kind != RopeScaling::Kind::none) {
    const bool linear = scaling.kind == RopeScaling::Kind::linear;
    rope = {{"rope_type", linear ? "linear" : "llama3"}, {"factor", short_number(scaling.factor)}};
    if (!linear) {
      rope["low_freq_factor"] = short_number(scaling.low_freq_factor);
      rope["high_freq_factor"] = short_number(scaling.high_freq_factor);
      rope["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
    }
    config["rope_scaling"] = rope;
  }
  config["rope_theta"] = short_number(options.rope_theta);
  rope["rope_theta"] = short_number(options.rope_theta);
  if (partial) {
    const double factor = static_cast<double>(options.rotary_dim()) / static_cast<double>(options.head_dim);
    config["partial_rotary_factor"] = factor;
    rope["partial_rotary_factor"] = factor;
  }
  config["rope_parameters"] = rope;
}

void write_windows(const StackConfig& stack, Type type, ordered_json& config) {
  Index window = 0;
  for (const LayerConfig& layer : stack.layers) window = std::max(window, layer.transformer.window);
  if (type == Type::mistral || type == Type::starcoder2 || type == Type::phi3) {
    config["sliding_window"] = window == 0 ? json() : json(window);
  }
  if (type != Type::qwen2 && type != Type::qwen3) return;
  config["use_sliding_window"] = window != 0;
  config["sliding_window"] = window == 0 ? json() : json(window);
  config["layer_types"] = json::array();
  Index full = 0;  // what versions without layer_types go by
  for (const LayerConfig& layer : stack.layers) {
    const bool sliding = layer.transformer.window != 0;
    config["layer_types"].push_back(sliding ? "sliding_attention" : "full_attention");
    full += sliding ? 0 : 1;
  }
  config["max_window_layers"] = full;
}

void write_transformer(const StackConfig& stack, Type type, ordered_json& config) {
  const TransformerOptions& options = stack.layers.front().transformer;
  config["hidden_size"] = stack.d_model;
  config["intermediate_size"] = options.intermediate;
  config["num_attention_heads"] = options.n_heads;
  config["num_key_value_heads"] = options.n_kv_heads;
  if (type != Type::stablelm) config["head_dim"] = options.head_dim;
  config["hidden_act"] = activation(options.mlp);
  config["max_position_embeddings"] = options.max_positions;
  const char* epsilon = type == Type::starcoder2 ? "norm_epsilon"
                        : type == Type::stablelm ? "layer_norm_eps"
                                                 : "rms_norm_eps";
  config[epsilon] = short_number(options.norm_eps);
  write_rope(options, type == Type::stablelm || type == Type::phi3, config);
  write_windows(stack, type, config);
  switch (type) {
    case Type::llama:
      config["attention_bias"] = options.qkv_bias;
      config["mlp_bias"] = options.mlp_bias;
      break;
    case Type::qwen3:
    case Type::gemma:
      config["attention_bias"] = options.qkv_bias;
      break;
    case Type::starcoder2:
      config["use_bias"] = options.qkv_bias;
      break;
    case Type::stablelm:
      config["use_qkv_bias"] = options.qkv_bias;
      config["use_parallel_residual"] = false;
      config["qk_layernorm"] = false;
      break;
    default:
      break;
  }
  // transformers checks these against the vocabulary; the tokens that count are in generation_config.json.
  for (const char* name : {"bos_token_id", "eos_token_id", "pad_token_id"}) config[name] = nullptr;
}

void write_mamba(const StackConfig& stack, Type type, ordered_json& config) {
  const Index d_model = stack.d_model;
  config["hidden_size"] = d_model;
  config["state_size"] = type == Type::mamba ? 16 : 128;
  config["conv_kernel"] = 4;
  config["expand"] = 2;
  config["use_bias"] = false;
  config["use_conv_bias"] = true;
  config["hidden_act"] = "silu";
  config["layer_norm_epsilon"] = 1e-5;
  config["residual_in_fp32"] = true;
  config["time_step_rank"] = (d_model + 15) / 16;
  if (type == Type::mamba) {
    config["intermediate_size"] = 2 * d_model;
  } else {
    const auto limit = [](float value) -> json {
      if (std::isfinite(value)) return short_number(value);
      return {{"__float__", value > 0.0F ? "Infinity" : "-Infinity"}};
    };
    const Mamba2Options& options = stack.layers.front().mamba2;
    config["num_heads"] = 2 * d_model / 64;
    config["head_dim"] = 64;
    config["n_groups"] = 1;
    config["chunk_size"] = 256;
    if (options.dt_low != 0.0F || std::isfinite(options.dt_high)) {
      config["time_step_limit"] = json::array({limit(options.dt_low), limit(options.dt_high)});
    }
  }
  for (const char* name : {"bos_token_id", "eos_token_id", "pad_token_id"}) config[name] = nullptr;
}

// Both as general stacks without dropout.
json comparable(const StackConfig& config) {
  StackConfig general = config;
  general.samba.reset();
  general.dropout = 0.0F;
  return config_to_json(general);
}

// Depth-first, so that the first difference is the one of the earliest layer.
std::string difference(const json& a, const json& b, const std::string& pointer) {
  if (a == b) return "";
  if (a.is_object() && b.is_object()) {
    for (const auto& [key, value] : a.items()) {
      const std::string found = difference(value, b.value(key, json()), pointer + "/" + key);
      if (!found.empty()) return found;
    }
  }
  if (a.is_array() && b.is_array() && a.size() == b.size()) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const std::string found = difference(a[i], b[i], pointer + "/" + std::to_string(i));
      if (!found.empty()) return found;
    }
  }
  return pointer + " is " + shown(a) + " and " + shown(b);
}

bool is_transformer(Type type) { return type != Type::mamba && type != Type::mamba2; }

}  // namespace

std::string first_config_difference(const StackConfig& a, const StackConfig& b) {
  return difference(comparable(a), comparable(b), "");
}

std::optional<ordered_json> huggingface_config(Type type, const StackConfig& stack, const std::string& dtype,
                                               std::string& why) {
  const BlockKind wanted = type == Type::mamba    ? BlockKind::mamba1
                           : type == Type::mamba2 ? BlockKind::mamba2
                                                  : BlockKind::transformer;
  for (std::size_t i = 0; i < stack.layers.size(); ++i) {
    if (stack.layers[i].kind == wanted) continue;
    why = std::string(huggingface_type_name(type)) + " has no " + std::string(block_kind_name(stack.layers[i].kind)) +
          " layer, which layer " + std::to_string(i) + " is";
    return std::nullopt;
  }
  ordered_json config = {{"architectures", {architecture(type)}}, {"model_type", huggingface_type_name(type)}};
  if (is_transformer(type)) {
    write_transformer(stack, type, config);
  } else {
    write_mamba(stack, type, config);
  }
  config["num_hidden_layers"] = stack.layers.size();
  config["vocab_size"] = stack.vocab;
  config["tie_word_embeddings"] = stack.tie_embeddings;
  config["use_cache"] = true;
  config["torch_dtype"] = dtype;
  config["dtype"] = dtype;
  try {
    const StackConfig again =
        parse_huggingface_config(parse_foreign_json(config.dump(), "config.json"), "config.json").stack;
    why = first_config_difference(stack, again);
    if (why.empty()) return config;
    why = std::string(huggingface_type_name(type)) + " differs: " + why;
  } catch (const Error& error) {
    why = std::string(huggingface_type_name(type)) + " cannot hold it: " + error.what();
  }
  return std::nullopt;
}

}  // namespace samba
