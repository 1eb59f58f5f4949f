// What the Mamba kinds share in the checks of their construction and of their states (spec 30 section 7, spec 31
// section 8, spec 40 section 9).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "samba/blocks/block.h"
#include "samba/core/array.h"
#include "samba/kernels/executor.h"

namespace samba {

// How conv1d.weight and its gradient are shaped; the bytes are the same.
enum class ConvWeightShape { with_group_axis, squeezed };  // (channels, 1, 4), (channels, 4)
Shape conv_weight_shape(Index channels, ConvWeightShape form);
ConvWeightShape conv_weight_form(const ConstArrayMap& weights);

// Error(value) unless the weights are exactly those of `specs`; names what is missing and what is unknown.
void check_weight_names(std::string_view kind, const std::vector<WeightSpec>& specs, const ConstArrayMap& weights);
void check_weight_dtypes(const std::vector<WeightSpec>& specs, const ConstArrayMap& weights);
// The length of a one-dimensional weight that is not empty.
Index check_weight_vector(const std::string& name, const ConstArrayMap& weights);
// In the order of `specs`; a conv1d.weight has two spellings.
void check_weight_shapes(const std::vector<WeightSpec>& specs, const ConstArrayMap& weights);

// Options of the kinds that have numeric_mode alone: an object or absent.
void check_mamba_options(std::string_view kind, const nlohmann::json& options);

// Refuses the first NaN or infinity of a state's piece in device memory.
void check_piece_finite(Executor& executor, std::string_view name, const Shape& shape, const float* device);

}  // namespace samba
