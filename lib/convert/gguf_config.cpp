#include "samba/convert/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "samba/core/error.h"
#include "samba/kernels/mamba1.h"

namespace samba {

namespace {

using Kind = GgufValue::Kind;

constexpr float kMambaEpsilon = 1e-5F;
constexpr Index kMostPositions = std::numeric_limits<std::int32_t>::max();

// The keys "<architecture>.<name>", each of which must be asked for.
class Fields {
 public:
  Fields(const GgufFile& file, std::string prefix)
      : metadata_(file.metadata()), source_(file.path().string()), prefix_(std::move(prefix)) {}

  [[noreturn]] void refuse(const std::string& name, const std::string& rule) const {
    refuse_unsupported(source_ + ": " + prefix_ + name + ": " + rule);
  }

  // A whole number; of a list of equal ones (some files give one a layer) the one.
  Index integer(const std::string& name, std::optional<Index> fallback, Index least = 1) {
    const GgufValue* const value = find(name);
    if (value == nullptr) return given(fallback, name);
    std::int64_t number = value->integer;
    if (value->kind == Kind::integers && !value->integers.empty()) {
      number = value->integers.front();
      const bool equal = std::all_of(value->integers.begin(), value->integers.end(),
                                     [&](std::int64_t other) { return other == number; });
      if (!equal) refuse(name, "differs from layer to layer; accepted: one number for all");
    } else if (value->kind != Kind::integer) {
      refuse(name, "must be an integer");
    }
    if (number < least || number > kMostPositions) {
      refuse(name, "must be an integer from " + std::to_string(least) + " to " + std::to_string(kMostPositions) +
                       ", got " + std::to_string(number));
    }
    return number;
  }
  double number(const std::string& name, std::optional<double> fallback) {
    const GgufValue* const value = find(name);
    if (value == nullptr) return given(fallback, name);
    if (value->kind != Kind::number) refuse(name, "must be a number");
    return value->number;
  }
  std::string text(const std::string& name, const std::string& fallback) {
    const GgufValue* const value = find(name);
    if (value == nullptr) return fallback;
    if (value->kind != Kind::text) refuse(name, "must be text");
    return value->text;
  }
  // A key that must have this value, where it is given.
  void expect(const std::string& name, Index wanted, const std::string& reason) {
    const Index given = integer(name, wanted, 0);
    if (given != wanted) {
      refuse(name, "must be " + std::to_string(wanted) + " (" + reason + "), got " + std::to_string(given));
    }
  }
  // Keys that change nothing in the arithmetic.
  void pass(std::initializer_list<const char*> names) {
    for (const char* name : names) asked_.insert(prefix_ + name);
  }
  void refuse_others() const {
    for (const auto& [name, value] : metadata_) {
      if (name.starts_with(prefix_) && !asked_.contains(name)) {
        refuse_unsupported(source_ + ": " + name +
                           ": is not known for this architecture; it may change what is computed");
      }
    }
  }

 private:
  const GgufValue* find(const std::string& name) {
    asked_.insert(prefix_ + name);
    const auto found = metadata_.find(prefix_ + name);
    return found == metadata_.end() ? nullptr : &found->second;
  }
  template <class Value>
  Value given(const std::optional<Value>& fallback, const std::string& name) const {
    if (!fallback) refuse_value(source_ + ": " + prefix_ + name + ": is missing");
    return *fallback;
  }

  const GgufMetadata& metadata_;
  std::string source_;
  std::string prefix_;
  std::set<std::string> asked_;
};

const GgufTensor& embedding_of(const GgufFile& file) {
  const GgufTensor* const tensor = file.find("token_embd.weight");
  if (tensor == nullptr) refuse_value(file.path().string() + ": the tensor token_embd.weight is missing");
  if (tensor->shape.size() != 2) {
    refuse_value(file.path().string() + ": tensor token_embd.weight must have two dimensions, got " +
                 shape_text(tensor->shape));
  }
  return *tensor;
}

// The scaling behind rope_freqs.weight.
RopeScaling scaling_of_factors(const GgufFile& file, const GgufTensor& tensor, const TransformerOptions& options) {
  const std::string name = file.path().string() + ": tensor " + tensor.name;
  const auto half = static_cast<std::size_t>(options.rotary_dim() / 2);
  if (half == 0 || tensor.format != WeightFormat::float32 || tensor.bytes.size() != half * sizeof(float)) {
    refuse_unsupported(name + " must be F32 of " + std::to_string(half) + " values");
  }
  std::vector<float> stored(half);
  std::memcpy(stored.data(), tensor.bytes.data(), tensor.bytes.size());
  if (const auto scaling = scaling_of_rope_factors(stored, options.rope_theta)) return *scaling;
  refuse_unsupported(name +
                     ": accepted are the factors of llama3 scaling with low_freq_factor 1, high_freq_factor 4 and 8192 "
                     "original positions, or another power of two of them");
}

RopeScaling read_scaling(Fields& fields, const GgufFile& file, const TransformerOptions& options) {
  RopeScaling scaling;
  const std::string type = fields.text("rope.scaling.type", "linear");
  if (type != "none" && type != "linear") {
    fields.refuse("rope.scaling.type", "must be one of none, linear, got " + type);
  }
  const double factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 0.0));
  if (type == "linear" && factor != 0.0 && factor != 1.0) {
    scaling.kind = RopeScaling::Kind::linear;
    scaling.factor = static_cast<float>(factor);
  }
  if (fields.number("rope.scaling.attn_factor", 1.0) != 1.0) fields.refuse("rope.scaling.attn_factor", "must be 1");
  const GgufTensor* const factors = file.find("rope_freqs.weight");
  if (factors == nullptr) return scaling;
  if (scaling.kind != RopeScaling::Kind::none) {
    fields.refuse("rope.scaling.factor", "is given, and so is the tensor rope_freqs.weight; accepted: one of them");
  }
  return scaling_of_factors(file, *factors, options);
}

// What all transformer layers share.
TransformerOptions read_transformer(Fields& fields, const GgufFile& file, GgufArchitecture architecture,
                                    Index d_model) {
  TransformerOptions options;
  options.d_model = d_model;
  options.n_heads = fields.integer("attention.head_count", std::nullopt);
  options.n_kv_heads = fields.integer("attention.head_count_kv", options.n_heads);
  options.intermediate = fields.integer("feed_forward_length", std::nullopt);
  options.max_positions = fields.integer("context_length", std::nullopt);
  options.head_dim = fields.integer("attention.key_length", d_model / options.n_heads);
  fields.expect("attention.value_length", options.head_dim, "the width of a head");
  fields.expect("rope.dimension_count", options.head_dim, "the width of a head");
  options.rope_theta = static_cast<float>(fields.number("rope.freq_base", 10000.0));
  options.rope_scaling = read_scaling(fields, file, options);
  options.norm_eps = static_cast<float>(fields.number("attention.layer_norm_rms_epsilon", std::nullopt));
  fields.expect("expert_count", 0, "mixtures of experts are not represented");
  fields.expect("expert_used_count", 0, "mixtures of experts are not represented");
  fields.expect("attention.sliding_window", 0, "models of this architecture have none");
  fields.pass({"rope.scaling.finetuned", "rope.scaling.original_context_length", "tensor_data_layout", "pooling_type"});
  options.qk_norm = architecture == GgufArchitecture::qwen3;
  if (architecture == GgufArchitecture::gemma) {
    options.norm = TransformerNorm::rmsnorm_offset;
    options.mlp = TransformerMlp::geglu_tanh;
  }
  return options;
}

void check_mamba(Fields& fields, Index d_model, bool second) {
  fields.expect("ssm.conv_kernel", 4, "the only one offered");
  fields.expect("ssm.inner_size", 2 * d_model, "twice embedding_length");
  fields.expect("ssm.state_size", second ? 128 : mamba1::kStates, "the only one offered");
  if (second) {
    fields.expect("ssm.time_step_rank", 2 * d_model / 64, "heads of 64 channels");
    fields.expect("ssm.group_count", 1, "the only one offered");
  } else {
    fields.expect("ssm.time_step_rank", mamba1::dt_rank(d_model), "a sixteenth of embedding_length");
    fields.expect("ssm.dt_b_c_rms", 0, "norms of dt, B and C are not represented");
  }
  const auto epsilon = static_cast<float>(fields.number("attention.layer_norm_rms_epsilon", std::nullopt));
  if (epsilon != kMambaEpsilon) {
    fields.refuse("attention.layer_norm_rms_epsilon", "must be 1e-05 in a Mamba model");
  }
  fields.pass({"context_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv"});
}

// Biases are there when their tensors are; a layer that has one of a kind must have all of it.
void read_biases(const GgufFile& file, std::size_t layer, TransformerOptions& options) {
  const auto has = [&](const std::string& name) {
    return file.find("blk." + std::to_string(layer) + "." + name) != nullptr;
  };
  options.qkv_bias = has("attn_q.bias") || has("attn_k.bias") || has("attn_v.bias");
  options.o_bias = has("attn_output.bias");
  options.mlp_bias = has("ffn_up.bias") || has("ffn_gate.bias") || has("ffn_down.bias");
}

GgufArchitecture read_architecture(const GgufFile& file) {
  const auto named = file.metadata().find("general.architecture");
  const std::string name = named == file.metadata().end() ? "" : named->second.text;
  const auto architecture = find_gguf_architecture(name);
  if (!architecture) {
    refuse_unsupported(file.path().string() + ": general.architecture: must be one of " + gguf_architecture_names() +
                       ", got " + (name.empty() ? "none" : name));
  }
  return *architecture;
}

}  // namespace

GgufModelConfig read_gguf_config(const GgufFile& file) {
  GgufModelConfig result;
  result.architecture = read_architecture(file);
  StackConfig& config = result.config;
  Fields fields(file, std::string(gguf_architecture_name(result.architecture)) + ".");
  const GgufTensor& embedding = embedding_of(file);
  config.vocab = embedding.shape[0];
  fields.expect("vocab_size", config.vocab, "the rows of token_embd.weight");
  config.d_model = fields.integer("embedding_length", std::nullopt);
  if (config.d_model != embedding.shape[1]) {
    fields.refuse("embedding_length", "must be the width of token_embd.weight, " + std::to_string(embedding.shape[1]) +
                                          ", got " + std::to_string(config.d_model));
  }
  const Index layers = fields.integer("block_count", std::nullopt);
  if (static_cast<std::size_t>(layers) > file.tensors().size()) {
    fields.refuse("block_count", std::to_string(layers) + " layers, but the file has " +
                                     std::to_string(file.tensors().size()) + " tensors");
  }
  LayerConfig layer;
  const bool second = result.architecture == GgufArchitecture::mamba2;
  if (second || result.architecture == GgufArchitecture::mamba) {
    layer.kind = second ? BlockKind::mamba2 : BlockKind::mamba1;
    check_mamba(fields, config.d_model, second);
  } else {
    layer.transformer = read_transformer(fields, file, result.architecture, config.d_model);
  }
  config.layers.assign(static_cast<std::size_t>(layers), layer);
  for (std::size_t i = 0; layer.kind == BlockKind::transformer && i < config.layers.size(); ++i) {
    read_biases(file, i, config.layers[i].transformer);
  }
  config.norm_eps = static_cast<float>(fields.number("attention.layer_norm_rms_epsilon", std::nullopt));
  config.tie_embeddings = file.find("output.weight") == nullptr;
  if (result.architecture == GgufArchitecture::gemma) {
    config.final_norm = TransformerNorm::rmsnorm_offset;
    config.embedding_scale = std::sqrt(static_cast<float>(config.d_model));
    config.tie_embeddings = true;
  }
  fields.refuse_others();
  try {
    config = stack_config_from_json(config_to_json(config));
  } catch (const Error& error) {
    throw Error(error.kind(), file.path().string() + ": the model of its metadata is not accepted: " + error.what());
  }
  return result;
}

}  // namespace samba
