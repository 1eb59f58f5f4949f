#include "samba/model/activation_plan.h"

#include <algorithm>
#include <string>

#include "samba/core/error.h"

namespace samba {

namespace {

constexpr Index kFloatBytes = sizeof(float);

// First inputs of segments, the others of one segment, the output of the last layer.
Index input_count(Index layers, Index segment) {
  return (layers + segment - 1) / segment + std::min(segment, layers) - 1 + 1;
}

// The last layers first: theirs are read first.
Index take_stores(std::span<const Index> store_floats, Index left, std::vector<bool>& has_store) {
  Index taken = 0;
  for (std::size_t i = store_floats.size(); i-- > 0;) {
    if (store_floats[i] == 0 || store_floats[i] > left - taken) continue;
    taken += store_floats[i];
    has_store[i] = true;
  }
  return taken;
}

}  // namespace

Index least_activation_bytes(Index layers, Index input_floats) {
  Index least = input_count(layers, 1);
  for (Index segment = 2; segment <= layers; ++segment) least = std::min(least, input_count(layers, segment));
  return least * input_floats * kFloatBytes;
}

ActivationPlan plan_activations(Index input_floats, std::span<const Index> store_floats, std::optional<Index> budget) {
  const auto layers = static_cast<Index>(store_floats.size());
  ActivationPlan plan;
  plan.has_store.assign(store_floats.size(), false);
  plan.inputs = input_count(layers, 1);
  plan.floats = plan.inputs * input_floats;
  const Index left = budget ? *budget / kFloatBytes - plan.floats : kStoresWithoutBudget;
  if (left >= 0) {
    plan.floats += take_stores(store_floats, left, plan.has_store);
    return plan;
  }
  for (plan.segment = 2; plan.segment <= layers; ++plan.segment) {
    plan.inputs = input_count(layers, plan.segment);
    plan.floats = plan.inputs * input_floats;
    if (plan.floats * kFloatBytes <= *budget) return plan;
  }
  refuse_value("activation_budget_bytes: the smallest tape of this batch takes " +
               std::to_string(least_activation_bytes(layers, input_floats)) + " bytes, given " +
               std::to_string(*budget));
}

}  // namespace samba
