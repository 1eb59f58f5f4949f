// Mamba3Kernels of the cpu executor: SIMD lanes over independent outputs, threads over tokens, heads and chunks.
//
//   mamba3_tokens.cpp             prepare_tokens, accumulate_angles          spec 40 sections 3.3, 3.4, 3.7
//   mamba3_rotate.cpp             rotate, weigh                              sections 3.6, 3.8
//   mamba3_scan.cpp               scan                                       sections 3.9 to 3.12
//   mamba3_step.cpp               weigh and scan of a decode step            sections 3.11, 11
//   mamba3_gate_backward.cpp      gate_backward, tokens_backward             spec 41 sections 3.2, 3.11 to 3.15
//   mamba3_scan_backward.cpp      scan_backward                              sections 3.4 to 3.8, 3.11
//   mamba3_tail_chain.cpp         the serial chain over a whole chunk        section 3.7 step 5
//   mamba3_rotate_backward.cpp    rotate_backward                            sections 3.3, 3.9, 3.10, 3.12
//   tiles-inl.h                   vectors with the spec's operations, products of small tiles, row dots
#pragma once

#include "samba/backends/cpu/context.h"
#include "samba/kernels/extended_gradients.h"
#include "samba/kernels/mamba3.h"

namespace samba::cpu {

class Mamba3Cpu final : public Mamba3Kernels, public Mamba3Products {
 public:
  explicit Mamba3Cpu(Context& context) : context_(context) {}

  void prepare_tokens(const Mamba3Call& call) override;
  void accumulate_angles(const Mamba3Call& call) override;
  void rotate(const Mamba3Call& call) override;
  void weigh(const Mamba3Call& call) override;
  void scan(const Mamba3Call& call) override;
  Index head_start_size() const override { return kHeadStartRows * mamba3::kStateSize; }
  bool leaves_head_start(const Mamba3Call& call) const override {
    return is_step(call) && call.working_rows() == mamba3::kChunk && call.head_start != nullptr;
  }
  void gate_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) override;
  void scan_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) override;
  void scan_backward_products(const Mamba3Call& call, const Mamba3Gradients& gradients) override;
  void rotate_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) override;
  void tokens_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) override;

 private:
  // Of the 64 rows p of a state (p, n) those whose chains have a head start. The step that brings a chunk's last row is
  // dearer than the one behind it, the first of a chunk: with 3/8 of the product done there, both take about as long.
  static constexpr Index kHeadStartRows = 24;

  // A call of one token of which nothing but the outputs is wanted: k_scaled is not filled.
  static bool is_step(const Mamba3Call& call);
  void step_weigh(const Mamba3Call& call);
  void step(const Mamba3Call& call);

  Context& context_;
};

// One chunk of one head of one batch row.
struct Mamba3ChunkIndex {
  Index batch, head, chunk;
};

// Units of work (batch, head, chunk) in row-major order.
inline Mamba3ChunkIndex mamba3_chunk_index(const Mamba3Call& call, Index unit, Index chunks) {
  const Index heads = call.heads();
  return {unit / chunks / heads, unit / chunks % heads, unit % chunks};
}

// Rows of chunk c that hold working rows.
inline Index mamba3_real_rows(const Mamba3Call& call, Index chunk) {
  return std::min(mamba3::kChunk, call.working_rows() - chunk * mamba3::kChunk);
}

}  // namespace samba::cpu
