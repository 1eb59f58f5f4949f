// What the gradient of a stack keeps between its forward and its backward.
//
// The layers are cut into segments of equal length (the last one may be shorter). The input of every segment's first
// layer is kept, and so is the output of the last layer; the inputs of the other layers share the memory of one segment
// and are computed again when the backward comes to it. Segments of one layer keep everything; then what is left of the
// budget holds what layers' own gradients read (KeepingBlock), the last layers first.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "samba/core/array.h"

namespace samba {

struct ActivationPlan {
  Index segment = 1;            // layers
  Index inputs = 0;             // arrays of one input each that the tape holds
  std::vector<bool> has_store;  // of layer i
  Index floats = 0;             // the whole tape
};

// `store_floats`: of layer i what its own gradient reads; 0: the layer keeps nothing. budget: bytes; null: every input,
// and at most kStoresWithoutBudget floats of stores. Error(value) when the smallest tape is larger, with its size.
inline constexpr Index kStoresWithoutBudget = Index{1} << 27;
ActivationPlan plan_activations(Index input_floats, std::span<const Index> store_floats, std::optional<Index> budget);

// The bytes of the smallest tape.
Index least_activation_bytes(Index layers, Index input_floats);

}  // namespace samba
