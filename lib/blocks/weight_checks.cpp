#include "samba/blocks/weight_checks.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "samba/blocks/block_options.h"
#include "samba/blocks/refusals.h"
#include "samba/core/error.h"
#include "samba/kernels/conv.h"

namespace samba {

namespace {

constexpr const char* kConvWeight = "conv1d.weight";

void append(std::string& list, const std::string& name) { list += (list.empty() ? "" : ", ") + name; }

std::string or_none(const std::string& list) { return list.empty() ? "none" : list; }

}  // namespace

Shape conv_weight_shape(Index channels, ConvWeightShape form) {
  if (form == ConvWeightShape::squeezed) return {channels, kConvTaps};
  return {channels, 1, kConvTaps};
}

ConvWeightShape conv_weight_form(const ConstArrayMap& weights) {
  return weights.at(kConvWeight).shape.size() == 2 ? ConvWeightShape::squeezed : ConvWeightShape::with_group_axis;
}

void check_weight_names(std::string_view kind, const std::vector<WeightSpec>& specs, const ConstArrayMap& weights) {
  std::string wanted, missing, unknown;
  for (const WeightSpec& spec : specs) {
    append(wanted, spec.name);
    if (weights.count(spec.name) == 0) append(missing, spec.name);
  }
  for (const auto& [name, array] : weights) {
    const bool known = std::any_of(specs.begin(), specs.end(),
                                   [&wanted = name](const WeightSpec& spec) { return spec.name == wanted; });
    if (!known) append(unknown, name);
  }
  if (missing.empty() && unknown.empty()) return;
  refuse_value("the weights of a " + std::string(kind) + " block are exactly " + wanted +
               "; missing: " + or_none(missing) + "; unknown: " + or_none(unknown));
}

void check_weight_dtypes(const std::vector<WeightSpec>& specs, const ConstArrayMap& weights) {
  for (const WeightSpec& spec : specs) refuse_other_dtype("weight " + spec.name, weights.at(spec.name));
}

Index check_weight_vector(const std::string& name, const ConstArrayMap& weights) {
  const Shape& shape = weights.at(name).shape;
  if (shape.size() == 1 && shape[0] >= 1) return shape[0];
  refuse_value("weight " + name + " must be one-dimensional (d_model,) and not empty, got the shape " +
               shape_text(shape));
}

void check_weight_shapes(const std::vector<WeightSpec>& specs, const ConstArrayMap& weights) {
  for (const WeightSpec& spec : specs) {
    const Shape& shape = weights.at(spec.name).shape;
    if (shape == spec.shape) continue;
    std::string wanted = shape_text(spec.shape);
    if (spec.name == kConvWeight) {
      const Index channels = spec.shape.front();
      wanted = shape_text(conv_weight_shape(channels, ConvWeightShape::with_group_axis)) + " or " +
               shape_text(conv_weight_shape(channels, ConvWeightShape::squeezed));
    }
    refuse_value("weight " + spec.name + " has the shape " + shape_text(shape) + ", wanted " + wanted);
  }
}

void check_mamba_options(std::string_view kind, const nlohmann::json& options) {
  if (options.is_null()) return;
  if (!options.is_object()) refuse_type("options must be a JSON object, got " + std::string(options.type_name()));
  for (auto option = options.begin(); option != options.end(); ++option) {
    if (option.key() != "numeric_mode") refuse_unknown_option(kind, option.key());
    check_numeric_mode(*option);
  }
}

void check_piece_finite(Executor& executor, std::string_view name, const Shape& shape, const float* device) {
  const Index found = executor.elementwise().first_non_finite(element_count(shape), device);
  if (found < 0) return;
  float value = 0.0F;
  executor.memory().copy_to_host(&value, device + found, sizeof value);
  refuse_non_finite(std::string(name), value, found);
}

}  // namespace samba
