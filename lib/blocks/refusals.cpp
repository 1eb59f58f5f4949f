#include "samba/blocks/refusals.h"

#include "samba/core/error.h"
#include "samba/numerics/float32.h"

namespace samba {

void refuse_other_dtype(const std::string& name, const ConstArray& array) {
  if (array.dtype == DType::float32) return;
  refuse_type(name + " must be float32, got " + std::string(dtype_name(array.dtype)));
}

void refuse_other_array(const std::string& name, const ConstArray& array, const Shape& wanted) {
  refuse_other_dtype(name, array);
  if (array.shape == wanted) return;
  refuse_value(name + " has the shape " + shape_text(array.shape) + ", wanted " + shape_text(wanted));
}

void refuse_non_finite(const std::string& name, float value, Index flat_index) {
  refuse_value((is_nan(value) ? "NaN in " : "infinity in ") + name + " at flat index " + std::to_string(flat_index));
}

void refuse_backward_mode(NumericMode mode) {
  if (mode != NumericMode::deterministic) return;
  refuse_unsupported("numeric mode deterministic is forward only; gradients are offered in identical and fast");
}

void refuse_tape_mode(NumericMode mode) {
  if (mode == NumericMode::identical) return;
  refuse_unsupported("a tape is not offered in the numeric mode " + std::string(numeric_mode_name(mode)) +
                     "; accepted: identical");
}

void check_finite(const std::string& name, std::span<const float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!is_finite(values[i])) refuse_non_finite(name, values[i], static_cast<Index>(i));
  }
}

}  // namespace samba
