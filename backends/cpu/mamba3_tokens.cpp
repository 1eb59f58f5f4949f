// Per-token values and angles of Mamba-3 (spec 40 sections 3.3, 3.4, 3.7).
//
//   A, dt, sigma, adt: [M, H], one value a token and head; b_normed, c_normed: [M, 128]; angle_rate: [M, 32]
//   angles: [M, H, 32], serial over the tokens of a batch row
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba3_tokens.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/mamba3-inl.h"
#include "samba/backends/cpu/mamba3.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace {
using namespace mamba3_lanes;

constexpr Index kBlock = 8;  // tokens side by side

// The head scalars of `count` values that lie in three runs of scratch: dd_A, dd_dt + dt_bias, trap (section 3.3).
void head_values(Index count, const float* raw_a, const float* raw_dt, const float* trap, float* a, float* dt,
                 float* sigma, float* adt) {
  const SimdLanes<D> l = lanes();
  const V one = constant(1.0F);
  const V floor = constant(-from_bits(0x38D1B717U));
  each_vector(count, [&](Index i) {
    const V raw = load(raw_a + i);
    const V ht = select(l.le(zero(), raw), add(one, raw), div(one, sub(one, raw)));
    V value = negate(ht);
    value = select(l.lt(floor, value), floor, value);
    const V step = flush_operand(D(), elementary::softplus(l, load(raw_dt + i)));
    store(value, a + i);
    store(step, dt + i);
    store(mul(value, step), adt + i);
    store(sigmoid(load(trap + i)), sigma + i);
  });
}

// y[n] = w[n] * (x[n] * rstd), rstd from the serial square sum, for `rows` <= kBlock tokens (section 3.4).
void norm_rows(Index rows, const float* x, Index x_stride, const float* weight, float* y) {
  row_dots(rows, N, x, x_stride, x, x_stride, [&](Index row, float sum) {
    const float mean = samba::div(sum, static_cast<float>(N));
    const float rstd = flush(samba::elementary::rsqrt(samba::add(mean, from_bits(0x3727C5ACU))));
    const V scale = constant(rstd);
    each_vector(
        N, [&](Index n) { store(mul(load(weight + n), mul(load(x + row * x_stride + n), scale)), y + row * N + n); });
  });
}

Index prepare_scratch(Index heads) { return 7 * round_up_to_lanes(kBlock * heads); }

void prepare_part(const Mamba3Call& call, Index first, Index last, float* scratch) {
  const Index heads = call.heads();
  const Index width = mamba3::projection_width(call.d_model);
  const mamba3::Columns column = mamba3::columns(call.d_model);
  const Index run = round_up_to_lanes(kBlock * heads);
  float* values[7];
  for (Index i = 0; i < 7; ++i) values[i] = scratch + i * run;
  std::fill(scratch, scratch + 7 * run, 0.0F);
  const V pi = constant(from_bits(0x40490FDBU));
  for (Index token = first; token < last; token += kBlock) {
    const Index rows = std::min(kBlock, last - token);
    const Index count = rows * heads;
    const float* x = call.in_proj + token * width;
    for (Index row = 0; row < rows; ++row) {
      const float* line = x + row * width;
      for (Index h = 0; h < heads; ++h) {
        values[0][row * heads + h] = line[column.a + h];
        values[1][row * heads + h] = samba::add(line[column.dt + h], call.dt_bias[h]);
        values[2][row * heads + h] = line[column.trap + h];
      }
    }
    head_values(round_up_to_lanes(count), values[0], values[1], values[2], values[3], values[4], values[5], values[6]);
    std::copy_n(values[3], count, call.a + token * heads);
    std::copy_n(values[4], count, call.current.dt + token * heads);
    std::copy_n(values[5], count, call.current.sigma + token * heads);
    std::copy_n(values[6], count, call.current.adt + token * heads);
    norm_rows(rows, x + column.b, width, call.b_norm_weight, call.b_normed + token * N);
    norm_rows(rows, x + column.c, width, call.c_norm_weight, call.c_normed + token * N);
    for (Index row = 0; row < rows; ++row) {
      each_vector(R, [&](Index r) {
        const V turn = flush_operand(D(), elementary::tanh(lanes(), load(x + row * width + column.angle + r)));
        store(mul(turn, pi), call.angle_rate + (token + row) * R + r);
      });
    }
  }
}

// Sequences [first, last) of (batch, head): `run` of all 32 angles walks the tokens together.
void angles_part(const Mamba3Call& call, Index first, Index last) {
  constexpr Index kVectors = R / kLanes;
  const Index heads = call.heads();
  const V two_pi = constant(from_bits(0x40C90FDBU));
  const V minus_two_pi = constant(-from_bits(0x40C90FDBU));
  for (Index sequence = first; sequence < last; ++sequence) {
    const Index batch = sequence / heads, head = sequence % heads;
    float* theta = call.theta == nullptr ? nullptr : call.theta + sequence * R;
    V run[kVectors];
    for (Index v = 0; v < kVectors; ++v) run[v] = theta == nullptr ? zero() : load(theta + v * kLanes);
    for (Index t = 0; t < call.tokens; ++t) {
      const Index token = batch * call.tokens + t;
      const V dt = broadcast(call.current.dt + token * heads + head);
      const float* rate = call.angle_rate + token * R;
      float* out = call.angles + (token * heads + head) * R;
      for (Index v = 0; v < kVectors; ++v) {
        const V sum = add(run[v], mul(load(rate + v * kLanes), dt));
        // The quotient is flushed by bits: floor of a negative subnormal would be -1. The floor has the quotient's
        // sign; Highway's scalar one gives +0 for -0.
        const V quotient = flush_store(D(), hn::Div(sum, two_pi));
        const V turns = hn::CopySign(hn::Floor(quotient), quotient);
        run[v] = mad(minus_two_pi, turns, sum);
        store(run[v], out + v * kLanes);
      }
    }
    if (theta != nullptr) {
      for (Index v = 0; v < kVectors; ++v) store(run[v], theta + v * kLanes);
    }
  }
}

}  // namespace
}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {
HWY_EXPORT(prepare_scratch);
HWY_EXPORT(prepare_part);
HWY_EXPORT(angles_part);
}  // namespace

void Mamba3Cpu::prepare_tokens(const Mamba3Call& call) {
  const Index floats = SAMBA_CPU_KERNEL(context_, prepare_scratch)(call.heads());
  context_.parallel(call.new_rows(), 8, [&](Index first, Index last, int thread) {
    SAMBA_CPU_KERNEL(context_, prepare_part)(call, first, last, context_.scratch(thread, floats));
  });
}

void Mamba3Cpu::accumulate_angles(const Mamba3Call& call) {
  context_.parallel(call.batch * call.heads(), 1, [&](Index first, Index last, int) {
    SAMBA_CPU_KERNEL(context_, angles_part)(call, first, last);
  });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
