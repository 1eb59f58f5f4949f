// A decode step of Mamba-3 in the open chunk, or opening one (spec 40 section 11): the new row alone.
//
//   1. step_weigh_part: gamma and scale of the working rows; the keys stay unscaled     section 3.6
//   2. step_part:       per (batch, head) the new row's output                          sections 3.9, 3.12
//
// Keys are scaled where they are read, and rows and states lie in lanes, so that nothing of the chunk is laid out anew.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba3_step.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/chunk_step-inl.h"
#include "samba/backends/cpu/mamba3-inl.h"
#include "samba/backends/cpu/mamba3.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace {
using namespace mamba3_lanes;

Index step_scratch() { return 5 * Q + P; }

// Working rows [first, last) of (batch, t).
void step_weigh_part(const Mamba3Call& call, Index first, Index last) {
  const Index heads = call.heads(), working = call.working_rows();
  const auto row_of = [&](const float* buffered, const float* current, Index batch, Index t) {
    return t < call.buffered ? buffered + (batch * call.buffer.rows + t) * heads : current + batch * heads;
  };
  for (Index row = first; row < last; ++row) {
    const Index batch = row / working, t = row % working, next = std::min(t + 1, working - 1);
    const float* dt = row_of(call.buffer.dt, call.current.dt, batch, t);
    const float* sigma = row_of(call.buffer.sigma, call.current.sigma, batch, t);
    const float* next_dt = row_of(call.buffer.dt, call.current.dt, batch, next);
    const float* next_sigma = row_of(call.buffer.sigma, call.current.sigma, batch, next);
    over_vectors(D(), 0, heads, [&](auto io, Index h) HWY_ATTR {
      const auto read = [&](const float* p) HWY_ATTR { return flush_operand(D(), io.load(p + h)); };
      const V gamma = mul(read(dt), read(sigma));
      const V beta = t + 1 < working ? mul(read(next_dt), sub(constant(1.0F), read(next_sigma))) : zero();
      io.store(gamma, call.gamma + row * heads + h);
      io.store(add(gamma, beta), call.scale + row * heads + h);
    });
  }
}

// What one (batch, head) reads.
struct Step {
  const Mamba3Call* call;
  Index batch, head;
  Index row;  // of the chunk: the new one. The buffer holds those before it, or the chunk before

  Index heads() const { return call->heads(); }
  Index cell() const { return batch * heads() + head; }
  const float* q() const { return call->current.q + cell() * N; }
  const float* key(Index j) const { return call->buffer.k + ((batch * call->buffer.rows + j) * heads() + head) * N; }
  const float* v(Index j) const {
    return j < row ? call->buffer.v + (batch * call->buffer.rows + j) * call->buffer.v_stride + head * P
                   : call->current.v + batch * call->current.v_stride + head * P;
  }
  float adt(Index j) const {
    return j < row ? call->buffer.adt[(batch * call->buffer.rows + j) * heads() + head] : call->current.adt[cell()];
  }
  Index working_cell(Index j) const {
    return (batch * call->working_rows() + call->buffered - row + j) * heads() + head;
  }
};

// weights[j] = (q . ks_j) * L[row][j] for the rows j before the new one.
void weigh_keys(const Step& s, const float* adt, float* scale, float* sums, float* weights) {
  if (s.row == 0) return;
  for (Index j = 0; j < Q; ++j) scale[j] = j < s.row ? s.call->scale[s.working_cell(j)] : 0.0F;
  segment_sums<1>(s.row, adt, Q, sums);
  constexpr int kGroups = 4;
  for (Index first = 0; first < s.row; first += kGroups * kLanes) {
    V dots[kGroups], factors[kGroups];
    for (int v = 0; v < kGroups; ++v) factors[v] = load(scale + first + v * kLanes);
    dot_rows(
        N, s.q(), [&](Index j) HWY_ATTR { return s.key(std::min(first + j, s.row - 1)); },
        [&](int v, V column) HWY_ATTR { return mul(column, factors[v]); }, dots);
    for (int v = 0; v < kGroups; ++v) {
      const Index j = first + v * kLanes;
      store(mul(flush_operand(D(), dots[v]), exp(load(sums + j))), weights + j);
    }
  }
}

// y[p] = chain over all 64 rows of mad(M, v, .): M is +0 for the new row, v for the rows that are missing after it.
void intra_row(const Step& s, const float* weights, float* y) {
  constexpr int kVectors = static_cast<int>(std::min<Index>(4, P / kLanes));
  for (Index p = 0; p < P; p += kVectors * kLanes) {
    V acc[kVectors];
    for (V& sum : acc) sum = zero();
    for (Index j = 0; j <= s.row; ++j) {
      const float* v = s.v(j) + p;
      const V weight = j < s.row ? broadcast(weights + j) : zero();
      HWY_UNROLL(4)
      for (int x = 0; x < kVectors; ++x) acc[x] = mad(weight, load(v + x * kLanes), acc[x]);
    }
    for (int x = 0; x < kVectors; ++x) store(s.row + 1 < Q ? add(acc[x], zero()) : acc[x], y + p + x * kLanes);
  }
}

// Sequences [first, last) of (batch, head).
void step_part(const Mamba3Call& call, Index first, Index last, float* scratch) {
  float* const adt = scratch;
  float* const scale = adt + Q;
  float* const sums = scale + Q;
  float* const weights = sums + Q;
  float* const y_intra = weights + Q;
  const Index heads = call.heads();
  const Index width = mamba3::projection_width(call.d_model);
  for (Index sequence = first; sequence < last; ++sequence) {
    const Step s{&call, sequence / heads, sequence % heads, call.buffered % Q};
    for (Index j = 0; j <= s.row; ++j) adt[j] = s.adt(j);
    weigh_keys(s, adt, scale, sums, weights);
    intra_row(s, weights, y_intra);
    const V reach = exp(constant(sum_terms(s.row, adt)));
    const float gamma = call.gamma[s.working_cell(s.row)];
    const V own = constant(samba::add(call.d[s.head], samba::mul(call.qk_chain[s.cell()], gamma)));
    const float* z = call.in_proj + s.batch * width + mamba3::columns(call.d_model).z + s.head * P;
    const Index out = s.cell() * P;
    state_dots(P, N, s.q(), call.h + sequence * P * N, [&](Index p, V sum) HWY_ATTR {
      const V y0 = add(mul(flush_operand(D(), sum), reach), load(y_intra + p));
      const V y1 = add(y0, mul(own, load(s.v(s.row) + p)));
      store(y1, call.skip + out + p);
      store(mul(y1, silu(load(z + p))), call.gate + out + p);
    });
  }
}

}  // namespace
}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {
HWY_EXPORT(step_scratch);
HWY_EXPORT(step_weigh_part);
HWY_EXPORT(step_part);

constexpr Index kWeighGrain = 64;  // rows a thread should have
}  // namespace

bool Mamba3Cpu::is_step(const Mamba3Call& call) {
  const bool outputs_alone = call.h_last == nullptr && call.decay == nullptr && call.pass_states == nullptr &&
                             call.qkdot == nullptr && call.y_intra == nullptr && call.y_state == nullptr;
  return outputs_alone && call.tokens == 1 && call.h != nullptr && call.pending_k == nullptr;
}

void Mamba3Cpu::step_weigh(const Mamba3Call& call) {
  context_.parallel(call.batch * call.working_rows(), kWeighGrain, [&](Index first, Index last, int) {
    SAMBA_CPU_KERNEL(context_, step_weigh_part)(call, first, last);
  });
}

void Mamba3Cpu::step(const Mamba3Call& call) {
  const Index floats = SAMBA_CPU_KERNEL(context_, step_scratch)();
  context_.parallel(call.batch * call.heads(), 4, [&](Index first, Index last, int thread) {
    SAMBA_CPU_KERNEL(context_, step_part)(call, first, last, context_.scratch(thread, floats));
  });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
