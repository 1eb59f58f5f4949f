// Inputs of the Mamba-1 kernels for twins, and runs of the kernels on one executor.
#pragma once

#include "kernel_twins.h"

namespace samba::mamba1_twins {

struct Size {
  Index batch, tokens, d_model;
};

// The inputs of one call, the same for every executor.
struct Inputs {
  Inputs(Draws& draws, const Size& size, Draw kind) {
    call.batch = size.batch;
    call.tokens = size.tokens;
    call.d_model = size.d_model;
    const Index di = call.channels(), rows = call.rows();
    a_log = draws.values(di * mamba1::kStates, Draw::normal);
    dt_bias = draws.values(di, Draw::normal);
    d = draws.values(di, kind);
    in_proj = flushed(draws, rows * 2 * di, kind);
    u = flushed(draws, rows * di, kind);
    x_proj = flushed(draws, rows * call.x_width(), kind);
    dt_proj = flushed(draws, rows * di, kind == Draw::mixed ? Draw::normal : kind);
    h = draws.values(call.batch * di * mamba1::kStates, kind);
    conv = flushed(draws, rows * di, kind);
    conv_weight = draws.values(di * 4, kind);
    d_gate = flushed(draws, rows * di, kind);
    d_u_x = flushed(draws, rows * di, kind);
  }

  // The forward on one executor; what it computes is kept here.
  Mamba1Call run(Executor& executor, bool carried) {
    const Index di = call.channels(), rows = call.rows();
    a = unwritten(di * mamba1::kStates);
    gate = unwritten(rows * di);
    delta = unwritten(rows * di);
    y = unwritten(rows * di);
    skip = unwritten(rows * di);
    kept = unwritten(call.batch * call.segments() * di * mamba1::kStates);
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
  for (int i = 0; i < 8; ++i) r.push_back(unwritten(rows * di));
  r.push_back(unwritten(rows * 2 * di));
  Values x_grad = unwritten(rows * c.x_width());
  for (Index i = 0; i < x_grad.size(); ++i) x_grad[i] = 7.0F;  // the columns of dt_low are left alone
  r.push_back(x_grad);
  r.push_back(unwritten(di * mamba1::kStates));
  r.push_back(unwritten(di * 4));
  r.push_back(unwritten(di));
  r.push_back(unwritten(rows * di * mamba1::kStates));
  Values a_rows = unwritten(c.batch * di * mamba1::kStates);
  Values leaf_sums = unwritten(Mamba1Gradients::leaf_sum_floats(c));
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
