// Weights as rows of quantised blocks (samba/numerics/block_weight.h), which products read where they lie: nothing is
// laid out anew.
#pragma once

#include "samba/backends/cpu/context.h"
#include "samba/backends/cpu/gemm.h"
#include "samba/kernels/linear.h"

namespace samba::cpu {

class BlockRows final : public PreparedWeight {
 public:
  explicit BlockRows(const ConstPackedWeight& weight) : weight_(weight) {}
  Index rows() const override { return weight_.rows; }
  Index columns() const override { return weight_.columns; }
  WeightFormat format() const override { return weight_.format; }
  std::size_t byte_size() const override { return static_cast<std::size_t>(weight_.rows) * weight_.row_bytes(); }
  bool reads_blocks() const override { return true; }
  const ConstPackedWeight& weight() const { return weight_; }
  void refresh(const ConstPackedWeight& weight) { weight_ = weight; }

 private:
  ConstPackedWeight weight_;
};

// For rows of k values.
BlockKernels block_kernels(const Context& context, Index k);

}  // namespace samba::cpu
