// Mamba2Kernels of the reference executor: plain scalar loops, straight from the spec.
#pragma once

#include "samba/kernels/mamba2.h"

namespace samba::reference {

class Mamba2Reference final : public Mamba2Kernels {
 public:
  void scan(const Mamba2Call& call) override;
  void gate_backward(const Mamba2Call& call, const Mamba2Gradients& gradients) override;
  void scan_backward(const Mamba2Call& call, const Mamba2Gradients& gradients) override;
  void conv_backward(const Mamba2Call& call, const Mamba2Gradients& gradients) override;
};

}  // namespace samba::reference
