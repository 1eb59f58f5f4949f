// The kinds of blocks and their options: the table that the readers of options, their messages and the README share.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "samba/blocks/block.h"

namespace samba {

const std::vector<std::string>& block_kinds();  // "transformer", "mamba1", "mamba2", "mamba3"

// The name of a kind's arithmetic, which its states and files carry: "mojolearn.identical.mamba1.fp32.v1". Error(value)
// for an unknown kind.
std::string_view block_profile(std::string_view kind);

struct BlockOption {
  std::string name;
  std::string standard;              // the default: JSON text, "required", or another option's name
  std::string accepted;              // in words
  std::vector<std::string> choices;  // not empty: these texts and nothing else, the first one the default
};

// In the order of spec 20 section 1. Error(value) for an unknown kind.
const std::vector<BlockOption>& block_options(std::string_view kind);
std::vector<std::string> block_option_names(std::string_view kind);

// Error(type): the block has no such option, it has ...
[[noreturn]] void refuse_unknown_option(std::string_view kind, const std::string& name);

// numeric_mode of any block (spec 20 section 12): Error(unsupported) for "deterministic" and "fast", which are modes of
// the commands, Error(value) for any other text than "identical", Error(type) for what is no text.
void check_numeric_mode(const nlohmann::json& value);

// The weights that a block of these options takes: names and shapes in registry order. options: as for the constructor;
// transformer: with `intermediate`, the rows of up_proj.weight. Refuses options as the constructor does.
std::vector<WeightSpec> block_weight_specs(std::string_view kind, const nlohmann::json& options, Index d_model);

}  // namespace samba
