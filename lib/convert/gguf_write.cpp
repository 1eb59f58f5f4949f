#include "samba/convert/gguf_write.h"

#include <algorithm>
#include <cmath>

#include "samba/convert/gguf_vocabulary.h"
#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/kernels/mamba1.h"
#include "samba/kernels/weight_rows.h"
#include "samba/numerics/elementary.h"

namespace samba {

namespace {

using Architecture = GgufArchitecture;

constexpr float kMambaEpsilon = 1e-5F;
constexpr std::uint32_t kFileFloat32 = 0, kFileBfloat16 = 32;  // general.file_type

std::string layer_text(std::size_t layer, const std::string& what) {
  return "layer " + std::to_string(layer) + " has " + what;
}

// Why no architecture with attention holds the layer; empty when one may.
std::string transformer_fault(const TransformerOptions& o) {
  if (o.window != 0 && o.window < o.max_positions) return "a window of " + std::to_string(o.window);
  if (o.norm == TransformerNorm::layernorm) return "norm layernorm";
  if (!o.gated()) return "an MLP without a gate";
  if (o.attn_softcap) return "an attn_softcap";
  if (o.norm_bias) return "norm_bias";
  if (o.rotary_dim() != o.head_dim) return "another rope_dim than head_dim";
  if (o.fixed15()) return "numeric_profile fixed15";
  return "";
}

// What layers of one file share.
bool same_but_biases(TransformerOptions a, const TransformerOptions& b) {
  a.qkv_bias = b.qkv_bias;
  a.o_bias = b.o_bias;
  a.mlp_bias = b.mlp_bias;
  return a == b;
}

// GGUF holds the factors of a llama3 scaling, not its numbers.
bool is_told_by_factors(const TransformerOptions& options) {
  const std::vector<float> factors = llama3_rope_factors(options.head_dim, options.rope_theta, options.rope_scaling);
  const auto told = scaling_of_rope_factors(factors, options.rope_theta);
  return told && (told->kind == RopeScaling::Kind::none ||
                  llama3_rope_factors(options.head_dim, options.rope_theta, *told) == factors);
}

// Why the architecture does not compute the stack; empty when it does. The layers are of the right kind.
std::string transformer_reason(Architecture architecture, const StackConfig& config) {
  const TransformerOptions& first = config.layers.front().transformer;
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const TransformerOptions& o = config.layers[i].transformer;
    if (const std::string fault = transformer_fault(o); !fault.empty()) return layer_text(i, fault);
    if (!same_but_biases(o, first)) return layer_text(i, "other options than layer 0");
    const bool gemma = architecture == Architecture::gemma;
    if ((o.norm == TransformerNorm::rmsnorm_offset) != gemma) return layer_text(i, "another norm");
    if ((o.mlp == TransformerMlp::geglu_tanh) != gemma || o.mlp == TransformerMlp::geglu) {
      return layer_text(i, "another mlp");
    }
    if (o.qk_norm != (architecture == Architecture::qwen3)) return layer_text(i, o.qk_norm ? "qk_norm" : "no qk_norm");
    const bool biased = o.qkv_bias || o.o_bias || o.mlp_bias;
    if (architecture == Architecture::qwen2 && (!o.qkv_bias || o.o_bias || o.mlp_bias)) {
      return layer_text(i, "other biases than those of q, k and v");
    }
    if (biased && (gemma || architecture == Architecture::qwen3)) return layer_text(i, "biases");
    const bool scaled = o.rope_scaling.kind == RopeScaling::Kind::llama3;
    if (scaled && architecture != Architecture::llama) return layer_text(i, "rope_scaling llama3");
    if (scaled && !is_told_by_factors(o)) {
      return layer_text(i, "rope_scaling llama3 with other numbers than those that GGUF's factors tell");
    }
    if (o.norm_eps != config.norm_eps) return layer_text(i, "another norm_eps than the final norm");
  }
  if (architecture != Architecture::gemma) return "";
  const float scale = std::sqrt(static_cast<float>(config.d_model));
  if (!config.embedding_scale || *config.embedding_scale != scale) return "embedding_scale is not the root of d_model";
  return config.tie_embeddings ? "" : "the head is not tied to the embedding";
}

std::string mamba_reason(const StackConfig& config) {
  if (config.norm_eps != kMambaEpsilon) return "norm_eps is not 1e-05";
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    if (config.layers[i].mamba2.dt_low != 0.0F || config.layers[i].mamba2.dt_high != kInfinity) {
      return layer_text(i, "a dt_limit");
    }
  }
  return "";
}

std::string reason(Architecture architecture, const StackConfig& config) {
  const BlockKind kind = architecture == Architecture::mamba    ? BlockKind::mamba1
                         : architecture == Architecture::mamba2 ? BlockKind::mamba2
                                                                : BlockKind::transformer;
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    if (config.layers[i].kind != kind) {
      return "layer " + std::to_string(i) + " is " + std::string(block_kind_name(config.layers[i].kind));
    }
  }
  const bool gemma = architecture == Architecture::gemma;
  if (config.logits_softcap) return "the logits have a softcap";
  if (config.embedding_scale && !gemma) return "the embedding is scaled";
  if (config.final_norm != (gemma ? TransformerNorm::rmsnorm_offset : TransformerNorm::rmsnorm)) {
    return "the final norm is another";
  }
  return kind == BlockKind::transformer ? transformer_reason(architecture, config) : mamba_reason(config);
}

Architecture choose_architecture(const StackConfig& config) {
  std::string reasons;
  for (const Architecture architecture : {Architecture::qwen2, Architecture::llama, Architecture::qwen3,
                                          Architecture::gemma, Architecture::mamba, Architecture::mamba2}) {
    const std::string why = reason(architecture, config);
    if (why.empty()) return architecture;
    reasons += (reasons.empty() ? "" : "; ") + std::string(gguf_architecture_name(architecture)) + ": " + why;
  }
  refuse_unsupported("--to gguf: no architecture of GGUF files computes this stack (" + reasons + ")");
}

class Fields {
 public:
  Fields(GgufFields& fields, Architecture architecture)
      : fields_(fields), prefix_(std::string(gguf_architecture_name(architecture)) + ".") {}
  void count(const char* name, Index value) { fields_.count(prefix_ + name, static_cast<std::uint32_t>(value)); }
  void number(const char* name, float value) { fields_.number(prefix_ + name, value); }
  void text(const char* name, const char* value) { fields_.text(prefix_ + name, value); }

 private:
  GgufFields& fields_;
  std::string prefix_;
};

void add_transformer(Fields& fields, const TransformerOptions& o) {
  fields.count("context_length", o.max_positions);
  fields.count("feed_forward_length", o.intermediate);
  fields.count("attention.head_count", o.n_heads);
  fields.count("attention.head_count_kv", o.n_kv_heads);
  fields.count("attention.key_length", o.head_dim);
  fields.count("attention.value_length", o.head_dim);
  fields.count("rope.dimension_count", o.head_dim);
  fields.number("rope.freq_base", o.rope_theta);
  if (o.rope_scaling.kind == RopeScaling::Kind::linear) {
    fields.text("rope.scaling.type", "linear");
    fields.number("rope.scaling.factor", o.rope_scaling.factor);
  }
}

void add_mamba(Fields& fields, Index d_model, bool second) {
  fields.count("context_length", Index{1} << 20);  // there is no limit; the number others write
  fields.count("feed_forward_length", 0);
  fields.count("attention.head_count", 0);
  fields.count("ssm.conv_kernel", 4);
  fields.count("ssm.inner_size", 2 * d_model);
  fields.count("ssm.state_size", second ? 128 : mamba1::kStates);
  fields.count("ssm.time_step_rank", second ? 2 * d_model / 64 : mamba1::dt_rank(d_model));
  if (second) fields.count("ssm.group_count", 1);
}

using PutFloats = std::function<void(std::span<const float>)>;

// The rows of a registry's tensor in the order of the file: head by head, its halves interleaved.
class InterleavedRows {
 public:
  InterleavedRows(Index head, Index columns, const PutFloats& put)
      : head_(head), columns_(columns), put_(put), rows_(static_cast<std::size_t>(head * columns)) {}
  void add(std::span<const float> values) {
    for (auto row = values.begin(); row != values.end(); row += columns_) {
      std::copy_n(row, columns_, rows_.begin() + interleaved_row(next_, head_) * columns_);
      if (++next_ < head_) continue;
      put_(rows_);
      next_ = 0;
    }
  }

 private:
  Index head_, columns_;
  const PutFloats& put_;
  std::vector<float> rows_;
  Index next_ = 0;  // the row of the head that comes next
};

// Hands on the values as the file has them.
void write_stored_values(const GgufTensorPlace& place, const ModelTensor& tensor, const PutFloats& put) {
  const HeldTensor held(tensor);
  const Index columns = place.registry_shape.size() == 2 ? place.registry_shape[1] : 1;
  InterleavedRows interleaved(place.head, columns, put);
  std::vector<float> changed;
  const auto change = [&](std::span<const float> values, auto&& of) {
    changed.resize(values.size());
    std::transform(values.begin(), values.end(), changed.begin(), of);
    put(changed);
  };
  for (WeightRows rows(held.view()); !rows.done(); rows.next()) {
    switch (place.change) {
      case GgufChange::none:
        put(rows.values());
        break;
      case GgufChange::interleaved_halves:
        interleaved.add(rows.values());
        break;
      case GgufChange::one_added:
        change(rows.values(), [](float value) { return flush(1.0F + flush(value)); });
        break;
      case GgufChange::decay_rate:
        change(rows.values(), [](float value) { return -flush(elementary::exp(flush(value))); });
        break;
    }
  }
}

// llama.cpp takes vectors, convolutions and decay rates in float32 alone.
bool is_matrix(const GgufTensorPlace& place) {
  return place.registry_shape.size() == 2 && place.change != GgufChange::decay_rate;
}

}  // namespace

GgufPlan plan_gguf(const OpenModel& model, WeightFormat format,
                   const std::function<WeightFormat(const ModelTensor&)>& format_of) {
  if (format != WeightFormat::float32 && format != WeightFormat::bfloat16) {
    refuse_unsupported("--to gguf holds float32 or bfloat16, got " + std::string(weight_format_name(format)) +
                       "; give --dtype float32 or bfloat16");
  }
  const StackConfig& config = model.state.config;
  GgufPlan plan;
  plan.architecture = choose_architecture(config);
  plan.places = gguf_tensor_places(plan.architecture, config);
  for (std::size_t i = 0; i < plan.places.size(); ++i) {
    plan.formats.push_back(is_matrix(plan.places[i]) ? format_of(model.tensors[i]) : WeightFormat::float32);
  }
  plan.fields.text("general.architecture", gguf_architecture_name(plan.architecture));
  plan.fields.text("general.type", "model");
  plan.fields.text("general.name", model.path.filename().string());
  plan.fields.count("general.file_type", format == WeightFormat::float32 ? kFileFloat32 : kFileBfloat16);
  Fields fields(plan.fields, plan.architecture);
  fields.count("vocab_size", config.vocab);
  fields.count("embedding_length", config.d_model);
  fields.count("block_count", static_cast<Index>(config.layers.size()));
  fields.number("attention.layer_norm_rms_epsilon", config.norm_eps);
  const bool second = plan.architecture == Architecture::mamba2;
  if (second || plan.architecture == Architecture::mamba) {
    add_mamba(fields, config.d_model, second);
  } else {
    const TransformerOptions& options = config.layers.front().transformer;
    add_transformer(fields, options);
    if (options.rope_scaling.kind == RopeScaling::Kind::llama3) {
      plan.rope_factors = llama3_rope_factors(options.head_dim, options.rope_theta, options.rope_scaling);
    }
  }
  plan.vocabulary = add_gguf_vocabulary(plan.fields, model, config.vocab);
  return plan;
}

void write_gguf_model(const GgufPlan& plan, const OpenModel& model, const Path& path,
                      const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  const FloatScope float_scope;
  std::vector<GgufTensorSource> tensors;
  if (!plan.rope_factors.empty()) {
    const auto half = static_cast<Index>(plan.rope_factors.size());
    tensors.push_back({"rope_freqs.weight", {half}, WeightFormat::float32, [&plan](const PutFloats& put) {
                         put(plan.rope_factors);
                       }});
  }
  for (std::size_t i = 0; i < plan.places.size(); ++i) {
    const GgufTensorPlace& place = plan.places[i];
    const ModelTensor& tensor = model.tensors[i];
    tensors.push_back({place.name, place.shape, plan.formats[i],
                       [&place, &tensor](const PutFloats& put) { write_stored_values(place, tensor, put); }});
  }
  write_gguf(path, plan.fields, tensors, progress);
}

}  // namespace samba
