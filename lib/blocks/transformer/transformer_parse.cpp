#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "samba/blocks/block_options.h"
#include "samba/blocks/transformer/transformer_names.h"
#include "samba/blocks/transformer/transformer_options.h"
#include "samba/core/error.h"

namespace samba {

namespace {

using nlohmann::json;
using W = TransformerWeight;

// Products of sizes stay far from 64 bits.
constexpr Index kLargestCount = std::numeric_limits<std::int32_t>::max();

bool is_text(const json& value, std::string_view text) {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

class Parser {
 public:
  Parser(const json& options, const ConstArrayMap& weights) : json_(options), weights_(weights) {
    if (!json_.is_object()) refuse_type("options must be a JSON object, got " + std::string(json_.type_name()));
  }

  TransformerOptions run() {
    check_dtypes();
    read_heads();
    read_numbers();
    read_rope_scaling();
    read_rope_dim_and_positions();
    read_norm_and_mlp();
    check_tensor_names();
    check_shapes();
    check_option_names();
    read_numeric_profile();
    read_numeric_mode();
    return options_;
  }

  TransformerOptions run_layer(Index d_model) {
    in_stack_ = true;
    options_.d_model = d_model;
    read_heads();
    const json* intermediate = find("intermediate");
    if (intermediate == nullptr) refuse_type("intermediate is required");
    options_.intermediate = integer("intermediate", *intermediate);
    if (options_.intermediate < 1) {
      refuse_value("intermediate must be at least 1, got " + std::to_string(options_.intermediate));
    }
    read_numbers();
    read_rope_scaling();
    read_rope_dim_and_positions();
    if (options_.rope_dim == options_.head_dim) options_.rope_dim = 0;
    read_norm_and_mlp();
    read_bias_flags();
    read_numeric_profile();
    read_numeric_mode();
    return options_;
  }

 private:
  // --- values of the JSON object; null stands for "absent" where the default is "none" ---
  const json* find(const char* name, bool nullable = false) const {
    const auto at = json_.find(name);
    if (at == json_.end() || (nullable && at->is_null())) return nullptr;
    return &*at;
  }

  static Index integer(const std::string& name, const json& value) {
    if (!value.is_number_integer()) refuse_type(name + " must be an integer, got " + value.dump());
    if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(kLargestCount)) {
      refuse_value(name + " must be at most " + std::to_string(kLargestCount) + ", got " + value.dump());
    }
    return value.get<Index>();
  }

  bool flag(const char* name) const {
    const json* value = find(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) refuse_type(std::string(name) + " must be true or false, got " + value->dump());
    return value->get<bool>();
  }

  static float positive(const std::string& name, const json& value) {
    double number = 0.0;
    std::string given = value.dump();
    if (value.is_number()) {
      number = value.get<double>();
      if (!std::isfinite(number)) given = std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
    } else if (is_text(value, "inf") || is_text(value, "-inf") || is_text(value, "nan")) {
      number = std::numeric_limits<double>::quiet_NaN();
    } else {
      refuse_type(name + " must be a number, got " + given);
    }
    if (!std::isfinite(number) || number <= 0) refuse_value(name + " must be finite and above 0, got " + given);
    const auto rounded = static_cast<float>(number);
    if (!std::isfinite(rounded) || rounded == 0.0F) {
      refuse_value(name + " must be a positive float32 number, got " + given + ", which rounds to " +
                   (rounded == 0.0F ? "0" : "infinity"));
    }
    return rounded;
  }

  std::string text(const char* name, const std::string& standard) const {
    const json* value = find(name);
    if (value == nullptr) return standard;
    if (!value->is_string()) refuse_type(std::string(name) + " must be a string, got " + value->dump());
    return value->get<std::string>();
  }

  template <class Table>
  static auto choice(const std::string& name, const std::string& value, const Table& table) {
    std::string allowed;
    for (const auto& [key, kind] : table) {
      if (key == value) return kind;
      allowed += (allowed.empty() ? "" : ", ") + std::string(key);
    }
    refuse_value(name + " '" + value + "' is unknown; accepted: " + allowed);
  }

  const ConstArray* weight(W which) const {
    const auto at = weights_.find(std::string(transformer_weight_name(which)));
    return at == weights_.end() ? nullptr : &at->second;
  }

  // --- the rows of spec 20 section 8 ---
  void check_dtypes() const {
    const auto check = [](const std::string& name, const ConstArray& array) {
      if (array.dtype == DType::float32) return;
      refuse_type("weight " + name + " must be float32, got " + std::string(dtype_name(array.dtype)));
    };
    for (std::size_t i = 0; i < kTransformerWeights; ++i) {
      const auto which = static_cast<W>(i);
      if (const ConstArray* array = weight(which)) check(std::string(transformer_weight_name(which)), *array);
    }
    for (const auto& [name, array] : weights_) check(name, array);
  }

  void read_heads() {
    const json* n_heads = find("n_heads");
    if (n_heads == nullptr) refuse_type("n_heads is required");
    options_.n_heads = integer("n_heads", *n_heads);
    if (options_.n_heads < 1) refuse_value("n_heads must be at least 1, got " + std::to_string(options_.n_heads));
    const json* n_kv_heads = find("n_kv_heads", true);
    options_.n_kv_heads = n_kv_heads != nullptr ? integer("n_kv_heads", *n_kv_heads) : options_.n_heads;
    if (options_.n_kv_heads < 1) {
      refuse_value("n_kv_heads must be at least 1, got " + std::to_string(options_.n_kv_heads));
    }
    if (const json* window = find("window")) options_.window = integer("window", *window);
    if (options_.window < 0) {
      refuse_value("window must be 0 (full attention) or positive, got " + std::to_string(options_.window));
    }

    const ConstArray* norm = weight(W::input_norm);
    const bool known = in_stack_ || (norm != nullptr && norm->shape.size() == 1 && norm->shape[0] > 0);
    if (known && !in_stack_) options_.d_model = norm->shape[0];
    const json* head_dim = find("head_dim", true);
    if (head_dim != nullptr) {
      options_.head_dim = integer("head_dim", *head_dim);
    } else if (known) {
      options_.head_dim = options_.d_model / options_.n_heads;
    }
    const bool may_differ = in_stack_ && head_dim != nullptr;
    if (known && !may_differ && options_.d_model != options_.n_heads * options_.head_dim) {
      refuse_value("d_model must be n_heads * head_dim, got d_model " + std::to_string(options_.d_model) +
                   ", n_heads " + std::to_string(options_.n_heads) + ", head_dim " + std::to_string(options_.head_dim));
    }
    if (options_.n_heads % options_.n_kv_heads != 0) {
      refuse_value("n_heads must be a multiple of n_kv_heads, got n_heads " + std::to_string(options_.n_heads) +
                   ", n_kv_heads " + std::to_string(options_.n_kv_heads));
    }
    head_dim_known_ = known || head_dim != nullptr;
    if (head_dim_known_ && (options_.head_dim < 2 || options_.head_dim % 2 != 0)) {
      refuse_value("head_dim must be even and positive, got " + std::to_string(options_.head_dim));
    }
  }

  void read_numbers() {
    if (const json* theta = find("rope_theta")) options_.rope_theta = positive("rope_theta", *theta);
    if (const json* eps = find("norm_eps")) options_.norm_eps = positive("norm_eps", *eps);
    if (const json* cap = find("attn_softcap", true)) options_.attn_softcap = positive("attn_softcap", *cap);
  }

  void read_rope_scaling() {
    const json* given = find("rope_scaling", true);
    if (given == nullptr) return;
    RopeScaling& scaling = options_.rope_scaling;
    if (!given->is_object()) {
      refuse_type("rope_scaling must be an object such as {\"type\": \"linear\", \"factor\": 2}, got " + given->dump());
    }
    const auto type_key = given->contains("type") ? "type" : "rope_type";
    const json type = given->contains(type_key) ? given->at(type_key) : json(nullptr);
    const bool linear = is_text(type, "linear");
    const bool llama3 = is_text(type, "llama3");
    const auto number = [&](const char* key, float& to) {
      if (given->contains(key)) to = positive("rope_scaling " + std::string(key), given->at(key));
    };
    number("factor", scaling.factor);
    if (llama3) {
      number("low_freq_factor", scaling.low_freq_factor);
      number("high_freq_factor", scaling.high_freq_factor);
    }
    if (!linear && !llama3) {
      refuse_value("rope_scaling type " + type.dump() + " is unknown; accepted: linear, llama3");
    }
    const std::vector<const char*> wanted =
        linear ? std::vector<const char*>{"factor"}
               : std::vector<const char*>{"factor", "low_freq_factor", "high_freq_factor",
                                          "original_max_position_embeddings"};
    for (const char* key : wanted) {
      if (!given->contains(key)) {
        refuse_value("rope_scaling type " + type.dump() + " needs the key " + std::string(key));
      }
    }
    scaling.kind = linear ? RopeScaling::Kind::linear : RopeScaling::Kind::llama3;
    if (linear) return;
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      refuse_value("rope_scaling high_freq_factor must be above low_freq_factor, got high_freq_factor " +
                   given->at("high_freq_factor").dump() + ", low_freq_factor " + given->at("low_freq_factor").dump());
    }
    scaling.original_max_position_embeddings =
        integer("rope_scaling original_max_position_embeddings", given->at("original_max_position_embeddings"));
    if (scaling.original_max_position_embeddings <= 0) {
      refuse_value("rope_scaling original_max_position_embeddings must be positive, got " +
                   std::to_string(scaling.original_max_position_embeddings));
    }
  }

  void read_rope_dim_and_positions() {
    if (const json* rope_dim = find("rope_dim", true)) {
      options_.rope_dim = integer("rope_dim", *rope_dim);
      const bool too_large = head_dim_known_ && options_.rope_dim > options_.head_dim;
      if (options_.rope_dim <= 0 || options_.rope_dim % 2 != 0 || too_large) {
        refuse_value("rope_dim must be even, positive and at most head_dim " + std::to_string(options_.head_dim) +
                     ", got " + std::to_string(options_.rope_dim));
      }
    }
    if (const json* max_positions = find("max_positions")) {
      options_.max_positions = integer("max_positions", *max_positions);
    }
    if (options_.max_positions <= 0) {
      refuse_value("max_positions must be positive, got " + std::to_string(options_.max_positions));
    }
  }

  void read_norm_and_mlp() {
    options_.norm = choice("norm", text("norm", "rmsnorm"), kTransformerNorms);
    mlp_ = text("mlp", "swiglu");
    options_.mlp = choice("mlp", mlp_, kTransformerMlps);
    const bool layernorm = options_.norm == TransformerNorm::layernorm;
    options_.norm_bias = flag("norm_bias");
    if (options_.norm_bias && !layernorm) {
      refuse_value("norm_bias needs norm layernorm, got norm " + text("norm", "rmsnorm"));
    }
    options_.qk_norm = flag("qk_norm");
    if (options_.qk_norm && layernorm) refuse_value("qk_norm cannot be combined with norm layernorm");
  }

  void read_bias_flags() {
    options_.qkv_bias = flag("qkv_bias");
    options_.o_bias = flag("o_bias");
    options_.mlp_bias = flag("mlp_bias");
  }

  void check_tensor_names() {
    read_bias_flags();
    for (std::size_t i = static_cast<std::size_t>(W::q_bias); i < kTransformerWeights; ++i) {
      const auto which = static_cast<W>(i);
      const std::string name(transformer_weight_name(which));
      if (options_.has(which) && weight(which) == nullptr) {
        refuse_value("weight " + name + " is missing; the options ask for it");
      }
      if (!options_.has(which) && weight(which) != nullptr) {
        refuse_value("weight " + name + " is given, but the option that uses it is off");
      }
    }
    if (!options_.gated() && weight(W::gate_proj) != nullptr) {
      refuse_value("weight gate_proj.weight is given, but the mlp '" + mlp_ + "' has no gate");
    }
    check_key_set();
  }

  void check_key_set() const {
    std::set<std::string> known;
    std::string missing, unknown, wanted;
    for (std::size_t i = 0; i < kTransformerWeights; ++i) {
      const auto which = static_cast<W>(i);
      if (!options_.has(which)) continue;
      const std::string name(transformer_weight_name(which));
      known.insert(name);
      wanted += (wanted.empty() ? "" : ", ") + name;
      if (weight(which) == nullptr) missing += (missing.empty() ? "" : ", ") + name;
    }
    for (const auto& [name, array] : weights_) {
      if (known.count(name) == 0) unknown += (unknown.empty() ? "" : ", ") + name;
    }
    if (missing.empty() && unknown.empty()) return;
    refuse_value("the weights do not fit the options: missing: " + (missing.empty() ? "none" : missing) +
                 "; unknown: " + (unknown.empty() ? "none" : unknown) + "; the exact set is: " + wanted);
  }

  void check_shapes() {
    const ConstArray& norm = *weight(W::input_norm);
    if (norm.shape.size() != 1 || norm.shape[0] < 1) {
      refuse_value("weight input_layernorm.weight has the shape " + shape_text(norm.shape) + ", wanted (d_model,)");
    }
    const ConstArray& first = *weight(options_.gated() ? W::gate_proj : W::up_proj);
    options_.intermediate = first.shape.empty() ? 0 : first.shape[0];
    for (std::size_t i = 0; i < kTransformerWeights; ++i) {
      const auto which = static_cast<W>(i);
      if (!options_.has(which)) continue;
      Shape wanted = options_.weight_shape(which);
      if (weight(which) == &first && options_.intermediate < 1) wanted[0] = 1;
      const Shape& shape = weight(which)->shape;
      if (shape == wanted) continue;
      const bool sets_intermediate = weight(which) == &first;
      refuse_value(
          "weight " + std::string(transformer_weight_name(which)) + " has the shape " + shape_text(shape) +
          ", wanted " +
          (sets_intermediate ? "(intermediate >= 1, " + std::to_string(options_.d_model) + ")" : shape_text(wanted)));
    }
  }

  void check_option_names() const {
    const std::vector<std::string> known = block_option_names("transformer");
    for (const auto& [name, value] : json_.items()) {
      if (std::find(known.begin(), known.end(), name) == known.end()) refuse_unknown_option("transformer", name);
    }
  }

  void read_numeric_profile() {
    options_.numeric_profile = choice("numeric_profile", text("numeric_profile", "fp32_v1"), kTransformerProfiles);
  }

  void read_numeric_mode() const {
    if (const json* mode = find("numeric_mode")) check_numeric_mode(*mode);
  }

  const json& json_;
  const ConstArrayMap& weights_;
  TransformerOptions options_;
  std::string mlp_;
  bool head_dim_known_ = false;
  bool in_stack_ = false;  // a layer of a general stack
};

}  // namespace

TransformerOptions parse_transformer_options(const json& options, const ConstArrayMap& weights) {
  return Parser(options, weights).run();
}

TransformerOptions parse_transformer_layer(const json& options, Index d_model) {
  const ConstArrayMap none;
  return Parser(options, none).run_layer(d_model);
}

}  // namespace samba
