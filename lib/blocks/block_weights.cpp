#include "samba/blocks/block_weights.h"

#include <algorithm>
#include <string>
#include <utility>

#include "samba/core/error.h"

namespace samba {

BlockWeights::BlockWeights(Executor& executor, std::vector<SlotSpec> slots)
    : executor_(executor), slots_(slots.size()) {
  for (std::size_t i = 0; i < slots.size(); ++i) static_cast<SlotSpec&>(slots_[i]) = std::move(slots[i]);
}

BlockWeights::BlockWeights(Executor& executor, const std::vector<WeightSpec>& specs,
                           std::span<const std::size_t> products)
    : executor_(executor), slots_(specs.size()) {
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const bool product = std::find(products.begin(), products.end(), i) != products.end();
    slots_[i].part = product ? Part::product : Part::elements;
    slots_[i].shape = specs[i].shape;
  }
}

void BlockWeights::bind(std::span<const WeightView> weights) {
  const auto there = std::count_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.part != Part::absent; });
  if (weights.size() != static_cast<std::size_t>(there)) {
    throw Error(ErrorKind::internal,
                "a block of " + std::to_string(there) + " weights was given " + std::to_string(weights.size()));
  }
  std::size_t next = 0;
  for (Slot& slot : slots_) {
    if (slot.part == Part::absent) continue;
    slot.view = weights[next++];
    slot.expanded = DeviceArray<float>();
    if (slot.part != Part::elements || !slot.view.is_packed()) continue;
    const ConstPackedWeight& packed = slot.view.packed();
    slot.expanded = DeviceArray<float>(executor_.memory(), packed.rows * packed.columns);
  }
  refresh();
}

std::size_t BlockWeights::slot_of(std::size_t weight) const {
  std::size_t slot = 0;
  for (;; ++slot) {
    if (slots_[slot].part == Part::absent) continue;
    if (weight == 0) return slot;
    --weight;
  }
}

void BlockWeights::refresh() {
  for (Slot& slot : slots_) {
    if (slot.expanded.size() > 0) executor_.linear().expand(slot.view.packed(), slot.expanded.data());
  }
}

const float* BlockWeights::elements(std::size_t slot) const {
  return slots_[slot].view.is_packed() ? slots_[slot].expanded.data() : slots_[slot].view.values();
}

const float* BlockWeights::matrix(std::size_t slot, Workspace& workspace) const {
  const WeightView& view = slots_[slot].view;
  if (!view.is_packed()) return view.values();
  float* values = workspace.floats(view.packed().rows * view.packed().columns);
  executor_.linear().expand(view.packed(), values);
  return values;
}

void BlockWeights::prepare(std::size_t slot, std::unique_ptr<PreparedWeight>& prepared) const {
  if (slots_[slot].part != Part::product) return;
  const WeightView& view = slots_[slot].view;
  const Shape& shape = slots_[slot].shape;
  LinearKernels& linear = executor_.linear();
  const bool blocks = view.is_packed() && view.packed().blocks != nullptr;
  const bool same_form = prepared != nullptr && prepared->format() == view.format();
  if (same_form && prepared->reads_blocks() == blocks) return linear.refresh(*prepared, view);
  prepared = view.is_packed() ? linear.prepare(view.packed()) : linear.prepare(shape[0], shape[1], view.values());
}

}  // namespace samba
