// Inputs of the Mamba-1 kernels for twins, and runs of the kernels on one executor.
#pragma once

#include "kernel_twins.h"

namespace samba::mamba1_twins {

struct Size {
  Index batch, tokens, d_model;
};

inline Values empty(Index size) { return Values(size, 3); }

// Finite values, as the block's checks guarantee.
inline Values finite(Draws& draws, Index size, Draw kind) { return draws.values(size, kind); }

// What a block would hand to the scan: stage values are flushed.
inline Values stage(Draws& draws, Index size, Draw kind) {
  Values values = draws.values(size, kind);
  for (Index i = 0; i < size; ++i) values[i] = flush(values[i]);
  return values;
}

// The inputs of one call, the same for every executor.
struct Inputs {
  Inputs(Draws& draws, const Size& size, Draw kind) {
    call.batch = size.batch;
    call.tokens = size.tokens;
    call.d_model = size.d_model;
    const Index di = call.channels(), rows = call.rows();
    a_log = finite(draws, di * mamba1::kStates, Draw::normal);
    dt_bias = finite(draws, di, Draw::normal);
    d = finite(draws, di, kind);
    in_proj = stage(draws, rows * 2 * di, kind);
    u = stage(draws, rows * di, kind);
    x_proj = stage(draws, rows * call.x_width(), kind);
    dt_proj = stage(draws, rows * di, kind == Draw::mixed ? Draw::normal : kind);
    h = finite(draws, call.batch * di * mamba1::kStates, kind);
    conv = stage(draws, rows * di, kind);
    conv_weight = finite(draws, di * 4, kind);
    d_gate = stage(draws, rows * di, kind);
    d_u_x = stage(draws, rows * di, kind);
  }

  // The forward on one executor; what it computes is kept here.
  Mamba1Call run(Executor& executor, bool carried) {
    const Index di = call.channels(), rows = call.rows();
    a = empty(di * mamba1::kStates);
    gate = empty(rows * di);
    delta = empty(rows * di);
    y = empty(rows * di);
    skip = empty(rows * di);
    kept = empty(call.batch * call.segments() * di * mamba1::kStates);
    after = h;
    executor.mamba1().decay_rates(a.size(), a_log.data(), a.data());
    Mamba1Call c = call;
    c.a = a.data();
    c.dt_bias = dt_bias.data();
    c.d = d.data();
    c.in_proj = in_proj.data();
    c.u = u.data();
    c.x_proj = x_proj.data();
    c.dt_proj = dt_proj.data();
    c.h = carried ? after.data() : nullptr;
    c.gate = gate.data();
    c.delta = delta.data();
    c.y = y.data();
    c.skip = skip.data();
    c.kept = kept.data();
    executor.mamba1().scan(c);
    return c;
  }

  Mamba1Call call;
  Values a_log{0}, dt_bias{0}, d{0}, in_proj{0}, u{0}, x_proj{0}, dt_proj{0}, h{0}, conv{0}, conv_weight{0}, d_gate{0},
      d_u_x{0};
  Values a{0}, gate{0}, delta{0}, y{0}, skip{0}, kept{0}, after{0};
};

inline Results gradients(Executor& executor, Inputs& in) {
  const Mamba1Call c = in.run(executor, false);
  const Index di = c.channels(), rows = c.rows();
  Results r;
  for (int i = 0; i < 8; ++i) r.push_back(empty(rows * di));
  r.push_back(empty(rows * 2 * di));
  Values x_grad = empty(rows * c.x_width());
  for (Index i = 0; i < x_grad.size(); ++i) x_grad[i] = 7.0F;  // the columns of dt_low are left alone
  r.push_back(x_grad);
  r.push_back(empty(di * mamba1::kStates));
  r.push_back(empty(di * 4));
  r.push_back(empty(di));
  r.push_back(empty(rows * di * mamba1::kStates));
  Values a_rows = empty(c.batch * di * mamba1::kStates);
  Values leaf_sums = empty(Mamba1Gradients::leaf_sum_floats(c));
  Mamba1Gradients g;
  g.conv = in.conv.data();
  g.conv_weight = in.conv_weight.data();
  g.d_gate = in.d_gate.data();
  g.d_u_x = in.d_u_x.data();
  float** cells[] = {&g.d_skip, &g.d_u_skip,  &g.d_rows,   &g.d_u_scan, &g.d_delta,       &g.d_dt_proj,   &g.d_u,
                     &g.d_conv, &g.d_in_proj, &g.d_x_proj, &g.d_a_log,  &g.d_conv_weight, &g.d_conv_bias, &g.d_h};
  for (std::size_t i = 0; i < r.size(); ++i) *cells[i] = r[i].data();
  g.d_a_rows = a_rows.data();
  g.leaf_sums = leaf_sums.data();
  executor.mamba1().gate_backward(c, g);
  executor.mamba1().scan_backward(c, g);
  executor.mamba1().conv_backward(c, g);
  return r;
}

}  // namespace samba::mamba1_twins
