// Mamba1Kernels of the cpu executor: channels in lanes with 16 vectors of states, threads over (batch row, channels);
// the reverse scan's threads over (batch row, leaf of 128 channels), because dB and dC are chains over a leaf's
// channels.
#pragma once

#include "samba/backends/cpu/context.h"
#include "samba/kernels/mamba1.h"

namespace samba::cpu {

class Mamba1Cpu final : public Mamba1Kernels {
 public:
  explicit Mamba1Cpu(Context& context) : context_(context) {}

  void decay_rates(Index n, const float* a_log, float* a) override;
  void scan(const Mamba1Call& call) override;
  void gate_backward(const Mamba1Call& call, const Mamba1Gradients& gradients) override;
  void scan_backward(const Mamba1Call& call, const Mamba1Gradients& gradients) override;
  void conv_backward(const Mamba1Call& call, const Mamba1Gradients& gradients) override;

 private:
  Context& context_;
};

}  // namespace samba::cpu
