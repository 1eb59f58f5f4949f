// Inputs of the Mamba-2 kernels for twins, and runs of the kernels on one executor.
#pragma once

#include <utility>

#include "kernel_twins.h"

namespace samba::mamba2_twins {

using mamba2::kCells;
using mamba2::kChunk;

struct Size {
  Index batch, tokens, d_model, buffered;
};

// The inputs of one call, the same for every executor.
struct Inputs {
  Inputs(Draws& draws, const Size& size, Draw kind) {
    call.batch = size.batch;
    call.tokens = size.tokens;
    call.d_model = size.d_model;
    call.buffered = size.buffered;
    call.dt_low = 0.01F;
    call.dt_high = 2.0F;
    const Index rows = call.rows(), heads = call.heads(), channels = call.channels();
    a = Values(heads);
    for (Index head = 0; head < heads; ++head) a[head] = -0.02F * static_cast<float>(head + 1);
    dt_bias = draws.values(heads, Draw::normal);
    d = draws.values(heads, kind);
    in_proj = flushed(draws, rows * call.width(), kind);
    for (Index t = 0; t < rows; ++t) {
      for (Index head = 0; head < heads; ++head) {
        in_proj[t * call.width() + mamba2::dt_column(call.d_model) + head] = draws.value(Draw::normal);
      }
    }
    x_bc = flushed(draws, rows * channels, kind);
    buffer_xbc = draws.values(size.batch * kChunk * channels, kind);
    buffer_dt = draws.values(size.batch * kChunk * heads, Draw::normal);
    h = draws.values(size.batch * heads * kCells, kind);
    conv = flushed(draws, rows * channels, kind);
    conv_weight = draws.values(channels * 4, kind);
    d_gate = flushed(draws, rows * call.inner(), kind);
  }

  enum class State { fresh, carried };
  enum class Extra { none, all };

  // The forward on one executor; what it computes is kept here.
  Mamba2Call run(Executor& executor, State state, Extra extra) {
    const Index rows = call.rows(), cells = rows * call.inner();
    const Index chunks = call.batch * call.heads() * call.chunks();
    dt = unwritten(call.batch * call.working_rows() * call.heads());
    scores = unwritten(rows * kChunk);
    for (Values* of_chunk : {&dacs, &decay}) *of_chunk = unwritten(chunks * kChunk);
    for (Values* states : {&pass_states, &chunk_states}) *states = unwritten(chunks * kCells);
    for (Values* by_cell : {&skip, &gate, &x_d, &y_diag, &y_off, &y}) *by_cell = unwritten(cells);
    h_last = unwritten(call.batch * call.heads() * kCells);
    after = h;
    Mamba2Call c = call;
    c.a = a.data();
    c.dt_bias = dt_bias.data();
    c.d = d.data();
    c.in_proj = in_proj.data();
    c.x_bc = x_bc.data();
    c.buffer_xbc = buffer_xbc.data();
    c.buffer_dt = buffer_dt.data();
    c.h = state == State::fresh ? nullptr : after.data();
    c.dt = dt.data();
    c.scores = scores.data();
    c.dacs = dacs.data();
    c.decay = decay.data();
    c.skip = skip.data();
    c.gate = gate.data();
    if (extra == Extra::all || c.chunks() > 1) c.pass_states = pass_states.data();
    if (extra == Extra::all) {
      c.h_last = h_last.data();
      c.x_d = x_d.data();
      c.y_diag = y_diag.data();
      c.y_off = y_off.data();
      c.y = y.data();
      c.chunk_states = chunk_states.data();
    }
    executor.mamba2().scan(c);
    return c;
  }

  Mamba2Call call;
  Values a{0}, dt_bias{0}, d{0}, in_proj{0}, x_bc{0}, buffer_xbc{0}, buffer_dt{0}, h{0}, conv{0}, conv_weight{0},
      d_gate{0};
  Values dt{0}, scores{0}, dacs{0}, decay{0}, pass_states{0}, chunk_states{0}, skip{0}, gate{0}, x_d{0}, y_diag{0},
      y_off{0}, y{0}, h_last{0}, after{0};
};

inline Results gradients(Executor& executor, Inputs& in) {
  const Mamba2Call c = in.run(executor, Inputs::State::fresh, Inputs::Extra::all);
  const Index rows = c.rows(), by_head = rows * c.heads(), cells = rows * c.inner(), channels = c.channels();
  const Index chunks = c.batch * c.heads() * c.chunks();
  Mamba2Gradients g;
  g.conv = in.conv.data();
  g.conv_weight = in.conv_weight.data();
  g.d_gate = in.d_gate.data();
  const std::pair<float**, Index> outputs[] = {{&g.d_skip, cells},
                                               {&g.d_rows, by_head},
                                               {&g.d_in_proj, rows * c.width()},
                                               {&g.d_off, chunks * kChunk},
                                               {&g.d_decay, chunks * kChunk},
                                               {&g.d_scale, chunks},
                                               {&g.d_dacs, chunks * kChunk},
                                               {&g.d_cumsum, by_head},
                                               {&g.d_da_seg, by_head},
                                               {&g.d_da, by_head},
                                               {&g.d_xd, cells},
                                               {&g.d_dt, by_head},
                                               {&g.d_xbc, rows * channels},
                                               {&g.d_states, chunks * kCells},
                                               {&g.d_a_log, c.heads()},
                                               {&g.d_dt_bias, c.heads()},
                                               {&g.d_conv, rows * channels},
                                               {&g.d_conv_weight, channels * 4},
                                               {&g.d_conv_bias, channels}};
  Results results;
  for (const auto& [pointer, size] : outputs) results.push_back(unwritten(size));
  for (std::size_t i = 0; i < results.size(); ++i) *outputs[i].first = results[i].data();
  Values d_scores = unwritten(rows * kChunk);
  g.d_scores = d_scores.data();
  executor.mamba2().gate_backward(c, g);
  executor.mamba2().scan_backward(c, g);
  executor.mamba2().conv_backward(c, g);
  return results;
}

}  // namespace samba::mamba2_twins
