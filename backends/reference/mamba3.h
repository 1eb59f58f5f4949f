// Mamba3Kernels of the reference executor: plain scalar loops, straight from the spec.
#pragma once

#include "samba/kernels/extended_gradients.h"
#include "samba/kernels/mamba3.h"

namespace samba::reference {

class Mamba3Reference final : public Mamba3Kernels, public Mamba3Products {
 public:
  void prepare_tokens(const Mamba3Call& call) override;
  void accumulate_angles(const Mamba3Call& call) override;
  void rotate(const Mamba3Call& call) override;
  void weigh(const Mamba3Call& call) override;
  void scan(const Mamba3Call& call) override;
  void gate_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) override;
  void scan_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) override;
  void scan_backward_products(const Mamba3Call& call, const Mamba3Gradients& gradients) override;
  void rotate_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) override;
  void tokens_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) override;
};

}  // namespace samba::reference
