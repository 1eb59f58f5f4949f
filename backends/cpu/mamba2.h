// Mamba2Kernels of the cpu executor: SIMD lanes over independent outputs, threads over batch rows, chunks and heads.
//
//   mamba2_scan.cpp             scan                                     spec 31 S8, S18, S19, section 3
//   mamba2_step.cpp             scan of a decode step                    section 5
//   mamba2_gate_backward.cpp    gate_backward, conv_backward             spec 32 sections 4.3, 4.8
//   mamba2_scan_backward.cpp    scan_backward: what crosses chunks       section 4.4, the states' part of 4.5
//   mamba2_pair_backward.cpp    scan_backward: pairs of rows             section 4.5
//   mamba2-inl.h                a chunk's rows, segment sums, triangular products
#pragma once

#include "samba/backends/cpu/context.h"
#include "samba/kernels/mamba2.h"

namespace samba::cpu {

// Pieces of a chunk's rows that are shared out when the scores are computed.
inline constexpr Index kMamba2ScoreBlocks = 4;
// Rows of a piece in a decode step: a multiple of every target's lanes.
inline constexpr Index kMamba2StepRows = 16;
// Pieces in the backward of the pairs.
inline constexpr Index kMamba2RowBlocks = 8;

class Mamba2Cpu final : public Mamba2Kernels {
 public:
  explicit Mamba2Cpu(Context& context) : context_(context) {}

  void scan(const Mamba2Call& call) override;
  void gate_backward(const Mamba2Call& call, const Mamba2Gradients& gradients) override;
  void scan_backward(const Mamba2Call& call, const Mamba2Gradients& gradients) override;
  void conv_backward(const Mamba2Call& call, const Mamba2Gradients& gradients) override;

 private:
  // A call of one token of which nothing but the outputs is wanted.
  static bool is_step(const Mamba2Call& call);
  void step(const Mamba2Call& call);
  void pair_backward(const Mamba2Call& call, const Mamba2Gradients& gradients);
  float* pairs(Index count);  // kept between calls

  Context& context_;
  HostMemory memory_;
  DeviceArray<float> pairs_;
};

}  // namespace samba::cpu
