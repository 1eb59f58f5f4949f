// Mamba1Kernels of the reference executor: plain scalar loops, straight from the spec.
#pragma once

#include "samba/kernels/mamba1.h"

namespace samba::reference {

class Mamba1Reference final : public Mamba1Kernels {
 public:
  void decay_rates(Index n, const float* a_log, float* a) override;
  void scan(const Mamba1Call& call) override;
  void gate_backward(const Mamba1Call& call, const Mamba1Gradients& gradients) override;
  void scan_backward(const Mamba1Call& call, const Mamba1Gradients& gradients) override;
  void conv_backward(const Mamba1Call& call, const Mamba1Gradients& gradients) override;
};

}  // namespace samba::reference
