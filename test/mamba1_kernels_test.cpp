// Twins of the kernels that make a Mamba-1 block: the convolution, the scan and their gradients, the norm's gradient.
#include <catch2/catch.hpp>

#define SAMBA_CPU_TWINS_ONLY
#include "kernel_twins.h"

namespace samba {
namespace {

constexpr Draw kKinds[] = {Draw::normal, Draw::mixed, Draw::small};

struct Size {
  Index batch, tokens, d_model;
};
// Lanes with and without a rest, one and two leaves of channels, segments of 16 tokens, leaves of 128 tokens.
constexpr Size kSizes[] = {{1, 1, 1}, {2, 5, 3}, {1, 33, 8}, {2, 16, 17}, {1, 130, 4}, {1, 17, 66}};

Values empty(Index size) { return Values(size, 3); }

// Finite values, as the block's checks guarantee.
Values finite(Draws& draws, Index size, Draw kind) { return draws.values(size, kind); }

// What a block would hand to the scan: stage values are flushed.
Values stage(Draws& draws, Index size, Draw kind) {
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

Results gradients(Executor& executor, Inputs& in) {
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

}  // namespace

TEST_CASE("the convolution and its window have the reference's bits, cut out of a wider matrix") {
  Draws draws(41);
  for (const Draw kind : kKinds) {
    for (const Size& size : kSizes) {
      for (const bool windowed : {false, true}) {
        INFO("tokens " << size.tokens << ", channels " << size.d_model);
        const Index channels = size.d_model, stride = channels + 3, rows = size.batch * size.tokens;
        const Values x = draws.values(rows * stride, kind), weight = draws.values(channels * 4, kind);
        const Values bias = draws.values(channels, kind), window = draws.values(size.batch * channels * 4, Draw::mixed);
        check_twins([&](Executor& executor) {
          const ConvCall call{size.batch, size.tokens,   channels,    x.data() + 1,
                              stride,     weight.data(), bias.data(), windowed ? window.data() : nullptr};
          Results r = {empty(rows * channels), empty(rows * channels), empty(rows * channels), window};
          executor.conv().conv_forward(call, r[0].data(), r[1].data());
          executor.conv().conv_forward(call, nullptr, r[2].data());
          executor.conv().update_window(call, r[3].data());
          CHECK(bits_equal(r[1], r[2]));
          return r;
        });
      }
    }
  }
}

TEST_CASE("the window holds the last four inputs whatever the length of the calls") {
  for (const auto& executor : twin_executors()) {
    for (const Index tokens : {1, 2, 3, 4, 5, 9}) {
      Draws draws(42);
      const Values x = draws.values(tokens * 3, Draw::mixed);
      Values window = draws.values(3 * 4, Draw::mixed);
      std::vector<float> want;
      for (Index d = 0; d < 3; ++d) {
        std::vector<float> sequence;
        for (Index j = 0; j < 4; ++j) sequence.push_back(window[d * 4 + j]);
        for (Index t = 0; t < tokens; ++t) sequence.push_back(x[t * 3 + d]);
        want.insert(want.end(), sequence.end() - 4, sequence.end());
      }
      executor->conv().update_window({1, tokens, 3, x.data(), 3, nullptr, nullptr, nullptr}, window.data());
      INFO("tokens " << tokens);
      CHECK(bits_equal(window, want));
    }
  }
}

TEST_CASE("the scan has the reference's bits, fresh and continued") {
  Draws draws(43);
  for (const Draw kind : kKinds) {
    for (const Size& size : kSizes) {
      Inputs in(draws, size, kind);
      for (const bool carried : {false, true}) {
        INFO("tokens " << size.tokens << ", d_model " << size.d_model << ", carried " << carried);
        check_twins([&](Executor& executor) {
          in.run(executor, carried);
          return Results{in.a, in.gate, in.delta, in.y, in.skip, in.after};
        });
      }
    }
  }
}

TEST_CASE("the gradients of scan, gate and convolution have the reference's bits") {
  Draws draws(44);
  for (const Draw kind : kKinds) {
    for (const Size& size : kSizes) {
      INFO("tokens " << size.tokens << ", d_model " << size.d_model);
      Inputs in(draws, size, kind);
      check_twins([&](Executor& executor) { return gradients(executor, in); });
    }
  }
}

TEST_CASE("the norm's gradient of Mamba-1 and Mamba-2 has the reference's bits, with and without a residual") {
  Draws draws(45);
  for (const Draw kind : kKinds) {
    for (const Index width : {1, 7, 32, 70}) {
      for (const bool residual : {false, true}) {
        constexpr Index kRows = 21;
        INFO("width " << width << ", residual " << residual);
        const Values x = draws.values(kRows * width, kind), weight = draws.values(width, kind);
        const Values dy = draws.values(kRows * width, kind), carried = draws.values(kRows * width, kind);
        check_twins([&](Executor& executor) {
          Results r = {empty(kRows * width), empty(kRows), empty(kRows * width), empty(width), empty(kRows)};
          executor.norm().mamba_norm_forward(kRows, width, 1e-5F, x.data(), weight.data(), r[0].data(), r[1].data());
          executor.norm().mamba12_norm_backward(kRows, width, 1e-5F, x.data(), weight.data(), r[1].data(), dy.data(),
                                                residual ? carried.data() : nullptr, r[2].data(), r[3].data(),
                                                r[4].data());
          return r;
        });
      }
    }
  }
}

}  // namespace samba
