// config.json of Hugging Face transformers and the configuration of a stack, both ways (docs/convert.md).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "samba/model/stack_config.h"

namespace samba {

enum class HuggingFaceType { llama, mistral, qwen2, qwen3, gemma, starcoder2, stablelm, phi3, mamba, mamba2 };

// In the order in which a type is chosen for a stack that several could hold.
std::vector<HuggingFaceType> huggingface_types();
std::string_view huggingface_type_name(HuggingFaceType type);  // "llama": model_type of config.json
std::optional<HuggingFaceType> find_huggingface_type(std::string_view name);

struct HuggingFaceConfig {
  HuggingFaceType type = HuggingFaceType::llama;
  StackConfig stack;
};

// What config.json describes. Error(value), naming the field, for what a stack does not compute exactly: another
// model_type, rope type, activation, a parallel residual, an unknown field. The field "samba" is left to others.
HuggingFaceConfig parse_huggingface_config(const nlohmann::json& config, const std::string& source);

// The config.json of a stack as this type, `dtype` its weights' ("float32", "bfloat16"); absent when the type cannot
// hold it, and `why` then says so: "llama has no window, layer 0 has /window 4".
std::optional<nlohmann::ordered_json> huggingface_config(HuggingFaceType type, const StackConfig& stack,
                                                         const std::string& dtype, std::string& why);

// Where two configurations compute something else, as a JSON pointer with both values; empty when nowhere. Dropout and
// whether it is written as a SambaStack make no difference.
std::string first_config_difference(const StackConfig& a, const StackConfig& b);

}  // namespace samba
