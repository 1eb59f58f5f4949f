// config.json of the package mamba_ssm (state-spaces/mamba): MambaLMHeadModel of Mamba-1, 2 or 3 layers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "samba/model/stack_config.h"

namespace samba {

bool is_mamba_ssm_config(const nlohmann::json& config);

// Error(value), naming the field: layers that the blocks of samba do not compute (another d_state, headdim, ngroups,
// MIMO, attention layers, an MLP), an unknown field.
StackConfig parse_mamba_ssm_config(const nlohmann::json& config, const std::string& source);

}  // namespace samba
