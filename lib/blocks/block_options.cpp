#include "samba/blocks/block_options.h"

#include <nlohmann/json.hpp>

#include "samba/blocks/mamba1/mamba1_block.h"
#include "samba/blocks/mamba2/mamba2_block.h"
#include "samba/blocks/mamba3/mamba3_block.h"
#include "samba/blocks/transformer/transformer_names.h"
#include "samba/core/error.h"

namespace samba {

namespace {

constexpr const char* kPositive = "number > 0";
constexpr const char* kFlag = "true, false";

BlockOption choice(std::string name, std::vector<std::string> choices) {
  std::string words;
  for (const std::string& word : choices) words += (words.empty() ? "" : ", ") + word;
  std::string standard = '"' + choices.front() + '"';
  return {std::move(name), std::move(standard), std::move(words), std::move(choices)};
}

template <class Table>
std::vector<std::string> names_of(const Table& table) {
  std::vector<std::string> names;
  for (const auto& [name, value] : table) names.emplace_back(name);
  return names;
}

BlockOption numeric_mode() { return choice("numeric_mode", {"identical"}); }

const std::vector<BlockOption> kTransformer = {
    {"n_heads", "required", "integer >= 1", {}},
    {"n_kv_heads", "n_heads", "a divisor of n_heads", {}},
    {"head_dim", "d_model / n_heads", "even integer; n_heads * head_dim = d_model", {}},
    {"window", "0", "integer >= 0; 0: full attention", {}},
    {"rope_theta", "10000", kPositive, {}},
    {"rope_scaling",
     "null",
     R"(null, {"type": "linear", "factor"}, {"type": "llama3", "factor", "low_freq_factor", "high_freq_factor", )"
     R"("original_max_position_embeddings"})",
     {}},
    {"rope_dim", "head_dim", "even integer, 2 to head_dim", {}},
    {"max_positions", "8192", "integer >= 1", {}},
    {"qkv_bias", "false", kFlag, {}},
    {"o_bias", "false", kFlag, {}},
    {"norm_bias", "false", "true, false; true needs norm layernorm", {}},
    {"mlp_bias", "false", kFlag, {}},
    choice("norm", names_of(kTransformerNorms)),
    {"norm_eps", "1e-06", kPositive, {}},
    choice("mlp", names_of(kTransformerMlps)),
    {"qk_norm", "false", "true, false; not with norm layernorm", {}},
    {"attn_softcap", "null", "null, number > 0", {}},
    choice("numeric_profile", names_of(kTransformerProfiles)),
    numeric_mode(),
};
const std::vector<BlockOption> kMode = {numeric_mode()};
const std::vector<BlockOption> kMamba2 = {
    {"dt_limit", R"([0, "inf"])", R"([low, high]: numbers, "inf", "-inf")", {}},
    numeric_mode(),
};

}  // namespace

const std::vector<std::string>& block_kinds() {
  static const std::vector<std::string> kinds = {"transformer", "mamba1", "mamba2", "mamba3"};
  return kinds;
}

namespace {
[[noreturn]] void refuse_kind(std::string_view kind) {
  std::string known;
  for (const std::string& name : block_kinds()) known += (known.empty() ? "" : ", ") + name;
  refuse_value("unknown kind of block '" + std::string(kind) + "'; there are: " + known);
}
}  // namespace

std::string_view block_profile(std::string_view kind) {
  if (kind == "transformer") return "attn-v1.norm-v1.gemm-leaf128-chains1";
  if (kind == "mamba1") return "mojolearn.identical.mamba1.fp32.v1";
  if (kind == "mamba2") return "mojolearn.identical.mamba2.fp32.v1";
  if (kind == "mamba3") return "mojolearn.identical.mamba3.siso.fp32.v1";
  refuse_kind(kind);
}

const std::vector<BlockOption>& block_options(std::string_view kind) {
  if (kind == "transformer") return kTransformer;
  if (kind == "mamba2") return kMamba2;
  if (kind == "mamba1" || kind == "mamba3") return kMode;
  refuse_kind(kind);
}

std::vector<std::string> block_option_names(std::string_view kind) {
  std::vector<std::string> names;
  for (const BlockOption& option : block_options(kind)) names.push_back(option.name);
  return names;
}

void refuse_unknown_option(std::string_view kind, const std::string& name) {
  std::string known;
  for (const std::string& option : block_option_names(kind)) known += (known.empty() ? "" : ", ") + option;
  refuse_type("a " + std::string(kind) + " block has no option '" + name + "'; it has " + known);
}

void check_numeric_mode(const nlohmann::json& value) {
  if (!value.is_string()) refuse_type("numeric_mode must be a string, got " + value.dump());
  const auto mode = value.get<std::string>();
  if (mode == "identical") return;
  if (mode == "deterministic" || mode == "fast") {
    refuse_unsupported("numeric_mode '" + mode + "' is not offered by a block; accepted: identical");
  }
  refuse_value("numeric_mode '" + mode + "' is unknown; accepted: identical");
}

std::vector<WeightSpec> block_weight_specs(std::string_view kind, const nlohmann::json& options, Index d_model) {
  if (kind == "transformer") return parse_transformer_layer(options, d_model).weight_specs();
  constexpr ConvWeightShape kConv = ConvWeightShape::with_group_axis;
  if (kind == "mamba2") {
    parse_mamba2_options(options);
    return Mamba2Block::make_weight_specs(d_model, kConv);
  }
  block_options(kind);  // refuses an unknown one
  check_mamba_options(kind, options);
  return kind == "mamba1" ? Mamba1Block::make_weight_specs(d_model, kConv) : Mamba3Block::make_weight_specs(d_model);
}

}  // namespace samba
