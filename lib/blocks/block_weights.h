// The weights of a block as its computation uses them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "samba/blocks/block.h"
#include "samba/kernels/executor.h"
#include "samba/kernels/weight.h"

namespace samba {

// Weights by slot, in an order of the block's own. What a kernel reads element by element is float32 memory: that of
// the caller, or of a packed matrix (A_log, B_bias: small ones) a copy expanded when it is bound. The matrices of
// products stay packed: forward products take them prepared, gradients an expansion in the workspace of the call.
class BlockWeights {
 public:
  enum class Part { absent, elements, product };

  struct SlotSpec {
    Part part = Part::absent;
    Shape shape = {};
  };
  BlockWeights(Executor& executor, std::vector<SlotSpec> slots);
  // One slot a weight, in the order of `specs`; `products`: the slots of products.
  BlockWeights(Executor& executor, const std::vector<WeightSpec>& specs, std::span<const std::size_t> products);

  // The views of all slots that are not absent, in slot order.
  void bind(std::span<const WeightView> weights);
  // Reads the packed elements again. Allocates nothing.
  void refresh();

  bool is_product(std::size_t slot) const { return slots_[slot].part == Part::product; }
  // The slot of bound weight number `weight`.
  std::size_t slot_of(std::size_t weight) const;

  const WeightView& view(std::size_t slot) const { return slots_[slot].view; }
  // Of a slot of elements; null when absent.
  const float* elements(std::size_t slot) const;
  // Of the matrix of a product.
  const float* matrix(std::size_t slot, Workspace& workspace) const;
  // Lays the matrix out for linear(), anew or in place.
  void prepare(std::size_t slot, std::unique_ptr<PreparedWeight>& prepared) const;

 private:
  struct Slot : SlotSpec {
    WeightView view;
    DeviceArray<float> expanded;  // of packed elements
  };

  Executor& executor_;
  std::vector<Slot> slots_;
};

}  // namespace samba
