// The weights of a module in device memory.
#include <algorithm>

#include "samba/blocks/module_core.h"
#include "samba/blocks/refusals.h"

namespace samba {

namespace {

constexpr Index kPieceCells = Index{1} << 20;  // of a packed matrix, expanded at a time

// The first element that is not finite: its flat index and value.
struct Found {
  Index index = -1;
  float value = 0.0F;
};

Found first_non_finite(Executor& executor, Index size, const float* values) {
  Found found;
  found.index = executor.elementwise().first_non_finite(size, values);
  if (found.index >= 0) executor.memory().copy_to_host(&found.value, values + found.index, sizeof found.value);
  return found;
}

Found first_non_finite(Executor& executor, const ConstPackedWeight& packed) {
  const Index rows = std::clamp<Index>(kPieceCells / std::max<Index>(packed.columns, 1), 1, packed.rows);
  DeviceArray<float> values(executor.memory(), rows * packed.columns);
  for (Index first = 0; first < packed.rows; first += rows) {
    const Index end = std::min(packed.rows, first + rows);
    executor.linear().expand(packed_rows(packed, first, end), values.data());
    Found found = first_non_finite(executor, (end - first) * packed.columns, values.data());
    if (found.index < 0) continue;
    found.index += first * packed.columns;
    return found;
  }
  return {};
}

}  // namespace

BoundWeights::BoundWeights(Executor& executor, const BlockRules& rules, const ConstWeightMap& weights)
    : block(rules.make_block()) {
  for (const WeightSpec& spec : block->weight_specs()) arrays.emplace_back(executor.memory(), weights.at(spec.name));
  bind();
}

BoundWeights::BoundWeights(Executor& executor, const BlockRules& rules, const BoundWeights& other)
    : block(rules.make_block()) {
  for (const DeviceWeight& weight : other.arrays) arrays.push_back(weight.clone(executor.memory()));
}

void BoundWeights::bind() {
  std::vector<WeightView> views;
  for (const DeviceWeight& weight : arrays) views.push_back(weight.view());
  block->bind_weights(views);
}

void BoundWeights::check_finite(Executor& executor) {
  if (known_finite) return;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const WeightView view = arrays[i].view();
    const Found found = view.is_packed() ? first_non_finite(executor, view.packed())
                                         : first_non_finite(executor, arrays[i].size(), view.values());
    if (found.index >= 0) refuse_non_finite(block->weight_specs()[i].name, found.value, found.index);
  }
  known_finite = true;
}

WeightFormat BoundWeights::format() const {
  for (const DeviceWeight& weight : arrays) {
    if (weight.format() != WeightFormat::float32) return weight.format();
  }
  return WeightFormat::float32;
}

}  // namespace samba
