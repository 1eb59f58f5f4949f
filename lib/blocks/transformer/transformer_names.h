// The names of the norms, MLPs and numeric profiles of a transformer block in its options.
#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "samba/blocks/transformer/transformer_options.h"

namespace samba {

inline constexpr std::array<std::pair<std::string_view, TransformerNorm>, 3> kTransformerNorms = {
    {{"rmsnorm", TransformerNorm::rmsnorm},
     {"layernorm", TransformerNorm::layernorm},
     {"rmsnorm_offset", TransformerNorm::rmsnorm_offset}}};
inline constexpr std::array<std::pair<std::string_view, TransformerMlp>, 5> kTransformerMlps = {
    {{"swiglu", TransformerMlp::swiglu},
     {"geglu", TransformerMlp::geglu},
     {"geglu_tanh", TransformerMlp::geglu_tanh},
     {"gelu", TransformerMlp::gelu},
     {"gelu_tanh", TransformerMlp::gelu_tanh}}};
inline constexpr std::array<std::pair<std::string_view, NumericProfile>, 2> kTransformerProfiles = {
    {{"fp32_v1", NumericProfile::fp32_v1}, {"fixed15_v1", NumericProfile::fixed15_v1}}};

}  // namespace samba
