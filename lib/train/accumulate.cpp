#include "samba/train/accumulate.h"

#include <string>
#include <vector>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/numerics/float32.h"
#include "samba/numerics/fold.h"

namespace samba {

void check_accumulation(Index tokens, Index pieces) {
  if (pieces < 1 || (pieces & (pieces - 1)) != 0) {
    refuse_value("accumulation: the number of parts must be a power of two, got " + std::to_string(pieces));
  }
  if (tokens != 0 && !accumulation_is_aligned(tokens, pieces)) {
    refuse_value("accumulation: the split of " + std::to_string(tokens) + " tokens into " + std::to_string(pieces) +
                 " parts is misaligned; every part must hold the same whole number of 128-token leaves");
  }
}

void accumulate_in_place(Executor& executor, Index n, std::span<float* const> parts) {
  const FloatScope float_scope;
  const auto count = static_cast<Index>(parts.size());
  check_accumulation(0, count);
  if (count == 1) executor.elementwise().flush(n, parts[0], parts[0]);
  for (std::size_t step = 1; step < parts.size(); step *= 2) {
    for (std::size_t i = 0; i < parts.size(); i += 2 * step) {
      executor.elementwise().add(n, parts[i], parts[i + step], parts[i]);
    }
  }
}

Array accumulate(Executor& executor, ConstArray parts, Index tokens) {
  const FloatScope float_scope;
  if (parts.dtype != DType::float32 || parts.shape.size() != 2 || parts.shape[0] < 1 || parts.shape[1] < 1) {
    refuse_value("accumulation: parts must be float32 of shape (parts, n), got " +
                 std::string(dtype_name(parts.dtype)) + " of shape " + shape_text(parts.shape));
  }
  const Index pieces = parts.shape[0], n = parts.shape[1];
  check_accumulation(tokens, pieces);
  for (Index i = 0; i < pieces * n; ++i) {
    if (!is_finite(parts.floats()[i])) {
      refuse_value("non-finite accumulation part " + std::to_string(i / n) + " at flat index " + std::to_string(i % n));
    }
  }
  DeviceArray<float> values(executor.memory(), pieces * n);
  values.upload(parts.floats());
  std::vector<float*> pointers;
  for (Index i = 0; i < pieces; ++i) pointers.push_back(values.data() + i * n);
  accumulate_in_place(executor, n, pointers);
  Array sum = Array::zeros({n});
  executor.memory().copy_to_host(sum.data(), values.data(), sum.byte_size());
  return sum;
}

}  // namespace samba
