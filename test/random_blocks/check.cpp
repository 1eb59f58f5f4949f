// The generator of the cases. RapidCheck is slow to compile: nothing else includes it.
#include <rapidcheck.h>

#include <cstdlib>

#include "properties.h"
#include "samba/blocks/mamba1/mamba1_block.h"
#include "samba/blocks/mamba2/mamba2_block.h"
#include "samba/blocks/mamba3/mamba3_block.h"
#include "samba/blocks/transformer/transformer_options.h"
#include "violation.h"

namespace samba {

namespace {

using nlohmann::json;

// Draws in a generator; each is shrunk towards `low`, false, the first entry.
Index between(Index low, Index high) { return *rc::gen::inRange<Index>(low, high + 1); }
bool flag() { return *rc::gen::inRange(0, 2) == 1; }
bool one_in(int n) { return *rc::gen::inRange(0, n) == n - 1; }
template <class T>
T one_of(const std::vector<T>& choices) {
  return choices[static_cast<std::size_t>(between(0, static_cast<Index>(choices.size()) - 1))];
}

struct Limits {
  bool long_sizes;
  Index wide(Index usual, Index most) const { return long_sizes && one_in(4) ? most : usual; }
};

TransformerOptions transformer_sizes(const Limits& limits) {
  TransformerOptions options;
  options.n_kv_heads = between(1, 3);
  options.n_heads = options.n_kv_heads * between(1, 3);
  options.head_dim = 2 * between(1, limits.wide(12, 70));
  options.d_model = options.n_heads * options.head_dim;
  options.intermediate = between(1, limits.wide(40, 300));
  if (flag()) options.window = between(1, 12);
  return options;
}

void add_rotary_options(TransformerOptions& options, json& given) {
  if (flag()) given["rope_theta"] = one_of<double>({500.0, 1e6});
  if (flag()) given["rope_dim"] = 2 * between(1, options.head_dim / 2);
  const Index scaling = between(0, 2);
  if (scaling == 1)
    given["rope_scaling"] = {{"type", "linear"}, {"factor", 1.0 + 0.5 * static_cast<double>(between(0, 6))}};
  if (scaling == 2) {
    given["rope_scaling"] = {{"type", "llama3"},
                             {"factor", one_of<double>({8.0, 2.5})},
                             {"low_freq_factor", 1.0},
                             {"high_freq_factor", 4.0},
                             {"original_max_position_embeddings", between(4, 64)}};
  }
}

void add_any_options(TransformerOptions& options, json& given) {
  add_rotary_options(options, given);
  options.norm =
      one_of<TransformerNorm>({TransformerNorm::rmsnorm, TransformerNorm::layernorm, TransformerNorm::rmsnorm_offset});
  const bool layernorm = options.norm == TransformerNorm::layernorm;
  given["norm"] = layernorm ? "layernorm" : options.norm == TransformerNorm::rmsnorm ? "rmsnorm" : "rmsnorm_offset";
  options.norm_bias = flag() && layernorm;
  options.qk_norm = flag() && !layernorm;
  options.qkv_bias = flag();
  options.o_bias = flag();
  options.mlp_bias = flag();
  given["norm_bias"] = options.norm_bias;
  given["qk_norm"] = options.qk_norm;
  given["qkv_bias"] = options.qkv_bias;
  given["o_bias"] = options.o_bias;
  given["mlp_bias"] = options.mlp_bias;
  if (flag()) given["norm_eps"] = one_of<double>({1e-5, 0.25});
  const std::vector<std::pair<std::string, TransformerMlp>> mlps = {{"swiglu", TransformerMlp::swiglu},
                                                                    {"geglu", TransformerMlp::geglu},
                                                                    {"geglu_tanh", TransformerMlp::geglu_tanh},
                                                                    {"gelu", TransformerMlp::gelu},
                                                                    {"gelu_tanh", TransformerMlp::gelu_tanh}};
  const auto mlp = one_of(mlps);
  given["mlp"] = mlp.first;
  options.mlp = mlp.second;
  if (flag()) given["attn_softcap"] = one_of<double>({5.0, 0.5, 50.0});
  if (one_in(3)) {
    given["numeric_profile"] = "fixed15_v1";
    options.numeric_profile = NumericProfile::fixed15_v1;
  }
}

void add_transformer(BlockCase& block, bool any_options, const Limits& limits) {
  TransformerOptions options = transformer_sizes(limits);
  block.kind = "transformer";
  block.options = {{"n_heads", options.n_heads}, {"n_kv_heads", options.n_kv_heads}, {"window", options.window}};
  if (any_options) add_any_options(options, block.options);
  block.d_model = options.d_model;
  block.specs = options.weight_specs();
  block.differentiable = !options.fixed15();
}

void add_mamba(BlockCase& block, RandomBlocks kind, const Limits& limits) {
  block.options = json::object();
  if (kind == RandomBlocks::mamba1) {
    block.kind = "mamba1";
    block.d_model = between(1, limits.wide(20, 72));
    block.specs = Mamba1Block::make_weight_specs(block.d_model,
                                                 flag() ? ConvWeightShape::squeezed : ConvWeightShape::with_group_axis);
    return;
  }
  block.d_model = 32 * between(1, limits.wide(2, 3));
  if (kind == RandomBlocks::mamba2) {
    block.kind = "mamba2";
    if (flag()) block.options["dt_limit"] = one_of<json>({{0.125, 0.25}, {0.0, 0.2}, {0.1, "inf"}});
    block.specs = Mamba2Block::make_weight_specs(block.d_model,
                                                 flag() ? ConvWeightShape::squeezed : ConvWeightShape::with_group_axis);
  } else {
    block.kind = "mamba3";
    block.specs = Mamba3Block::make_weight_specs(block.d_model);
  }
}

BlockCase draw_case(RandomBlocks kind, bool long_sizes) {
  const Limits limits{long_sizes};
  BlockCase block;
  const bool transformer = kind == RandomBlocks::default_transformer || kind == RandomBlocks::any_transformer;
  if (transformer) {
    add_transformer(block, kind == RandomBlocks::any_transformer, limits);
  } else {
    add_mamba(block, kind, limits);
  }
  block.batch = between(1, 3);
  // Mamba-2 works in chunks of 256 tokens, Mamba-3 of 64.
  const Index longest =
      limits.wide(transformer || kind == RandomBlocks::mamba1 ? 9 : 5, kind == RandomBlocks::mamba2 ? 140 : 45);
  const Index pieces = between(1, 4);
  for (Index i = 0; i < pieces; ++i) block.pieces.push_back(one_in(2) ? 1 : between(1, longest));
  for (Index b = 0; b < block.batch; ++b) block.lengths.push_back(between(1, block.length()));
  const Index families = transformer ? 2 : 1;  // the decays of a Mamba block are no place for 2^20
  block.family = static_cast<ValueFamily>(between(0, families));
  block.seed = static_cast<std::uint64_t>(between(0, 1 << 20));
  return block;
}

const char* name_of(RandomBlocks blocks) {
  switch (blocks) {
    case RandomBlocks::default_transformer:
      return "a transformer block of default options";
    case RandomBlocks::any_transformer:
      return "a transformer block of any options";
    case RandomBlocks::mamba1:
      return "a Mamba-1 block";
    case RandomBlocks::mamba2:
      return "a Mamba-2 block";
    case RandomBlocks::mamba3:
      return "a Mamba-3 block";
  }
  return "";
}

}  // namespace

bool check_random_blocks(RandomBlocks blocks, int cases, bool long_sizes) {
  // Read once, by the first check of the program.
  const std::string parameters = "seed=20261130 max_success=" + std::to_string(cases);
  setenv("RC_PARAMS", parameters.c_str(), 0);
  return rc::check(name_of(blocks), [=] {
    const auto cases_of_any_size = rc::gen::exec([=] { return draw_case(blocks, long_sizes); });
    const BlockCase block = *rc::gen::resize(rc::kNominalSize, cases_of_any_size);
    const std::string broken = violation(block);
    if (!broken.empty()) RC_FAIL(broken);
  });
}

}  // namespace samba
