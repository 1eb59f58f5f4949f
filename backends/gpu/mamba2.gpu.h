// The class of the Mamba-2 family: the launches of each call.
#pragma once

#include "samba/backends/gpu/mamba2_gate_backward.gpu.h"
#include "samba/backends/gpu/mamba2_pairs_backward.gpu.h"
#include "samba/backends/gpu/mamba2_scan.gpu.h"
#include "samba/backends/gpu/mamba2_scan_backward.gpu.h"
#include "samba/backends/gpu/mamba2_step.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

class Mamba2Gpu final : public Mamba2Kernels {
 public:
  explicit Mamba2Gpu(Context& context) : context_(context) {}

  void scan(const Mamba2Call& call) override {
    const Workspace::Scope scope(context_.workspace());
    const bool few = call.tokens <= kFewTokens;
    for_each(context_, call.batch * call.working_rows() * call.heads(), StepSizes{call});
    const float* starts = few ? decays(call, nullptr) : decays(call, new_starts(call));
    if (few) {
      launch(context_, Grid{static_cast<unsigned>(call.rows()), kTiles}, kTileThreads, row_scores, call);
    } else {
      launch(context_, chunk_grid(all_chunks(call), kTiles * kTiles, 1), kTileThreads, chunk_scores, call);
    }
    // The outputs read the states that enter the chunks; without pass_states that is the call's own before it moves on.
    if (call.pass_states != nullptr) states(call);
    if (few) {
      launch(context_, Grid{static_cast<unsigned>(call.rows()), heads(call)}, kTileThreads, row_outputs, call);
    } else {
      launch(context_, chunk_grid(all_chunks(call), kTiles, call.heads()), kTileThreads, chunk_outputs, call, starts,
             find_non_finite(context_, call));
    }
    if (call.pass_states == nullptr) states(call);
  }

  void gate_backward(const Mamba2Call& call, const Mamba2Gradients& g) override {
    launch_gate_backward(context_, call, g);
  }
  void scan_backward(const Mamba2Call& call, const Mamba2Gradients& g) override {
    const Workspace::Scope scope(context_.workspace());
    const float* starts = decays(call, new_starts(call));
    const int* large = find_large(context_, call, g);
    launch_state_gradients(context_, call, g, large);
    launch_pair_gradients(context_, call, g, starts, large);
    launch_step_size_gradients(context_, call, g);
  }
  void conv_backward(const Mamba2Call& call, const Mamba2Gradients& g) override {
    launch_conv_backward(context_, call, g);
  }

 private:
  static Index all_chunks(const Mamba2Call& call) { return call.batch * call.chunks(); }
  static unsigned heads(const Mamba2Call& call) { return static_cast<unsigned>(call.heads()); }

  float* new_starts(const Mamba2Call& call) {
    return context_.workspace().floats(all_chunks(call) * call.heads() * kStarts * kChunk);
  }
  const float* decays(const Mamba2Call& call, float* starts) {
    launch(context_, chunk_grid(all_chunks(call), 1, call.heads()), kTileThreads, chunk_decays, call, starts);
    return starts;
  }

  // The chunks' own states and those that pass between them. An open chunk's own state is made for a report alone.
  void states(const Mamba2Call& call) {
    const bool last =
        call.real_rows(call.chunks() - 1) == kChunk || call.h_last != nullptr || call.chunk_states != nullptr;
    const Index chunks = last ? call.chunks() : call.chunks() - 1;
    if (chunks == 0 && call.pass_states == nullptr) return;
    const Workspace::Scope scope(context_.workspace());
    OwnStates own{call.chunk_states, call.pass_states, nullptr};
    if (last && call.chunk_states == nullptr)
      own.last = context_.workspace().floats(call.batch * call.heads() * kCells);
    if (chunks > 0) {
      launch(context_, chunk_grid(call.batch * chunks, kStateColumns / kTile, call.heads()), kTileThreads, own_states,
             call, own, chunks);
    }
    for_each(context_, call.batch * call.heads() * kCells, PassStates{call, own, chunks});
  }

  Context& context_;
};

}  // namespace

std::unique_ptr<Mamba2Kernels> make_mamba2(Context& context) { return std::make_unique<Mamba2Gpu>(context); }

}  // namespace samba::SAMBA_GPU
