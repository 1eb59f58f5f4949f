// The tail chain of spec 41 section 3.7 step 5: one serial chain of 64 * 8192 + 8192 fused steps a chunk, E[p][n] being
// the gradient of the state that leaves the chunk:
//
//   for j, p, n:  sum = mad(E[p][n], v_j[p] * ks_j[n] * exp(da_63 - da_j), sum)
//   for p, n:     sum = mad(E[p][n], S[p][n] * exp(da_63), sum)
//
// A chain cannot be cut, so each lane of a vector runs the chain of another chunk. Operands are laid out by lane first:
// E is streamed from the second-level cache (512 KiB at 16 lanes), one row of v and ks at a time from the first.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba3_tail_chain.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/mamba3-inl.h"
#include "samba/backends/cpu/mamba3.h"
#include "samba/backends/cpu/mamba3_scan_backward.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace {
using namespace mamba3_lanes;

constexpr Index kScratch = (P * N + N + P) * kLanes;

Index tail_lanes() { return kLanes; }
Index tail_scratch() { return kScratch; }

// The chunks of one vector; lanes that are left over repeat the first chunk.
struct Members {
  const float* e[kLanes];
  const float* state[kLanes];
  const float* keys[kLanes];
  const float* v[kLanes];
  const float* dacs[kLanes];
  Index last_row[kLanes];  // of [M, H]
  Index count;
};

Members make_members(const Mamba3Call& call, const Mamba3Gradients& g, Index first, Index units) {
  const Index heads = call.heads(), chunks = call.chunks();
  Members m{};
  m.count = std::min(kLanes, units - first);
  for (Index lane = 0; lane < kLanes; ++lane) {
    const Mamba3ChunkIndex at = mamba3_chunk_index(call, first + (lane < m.count ? lane : 0), chunks - 1);
    const Index token = at.batch * call.tokens + at.chunk * Q;
    const Index state = ((at.batch * chunks + at.chunk) * heads + at.head) * P * N;
    m.e[lane] = g.state_gradients + state + heads * P * N;
    m.state[lane] = call.pass_states + state;
    m.keys[lane] = call.k_scaled + (token * heads + at.head) * N;
    m.v[lane] = call.current.v + token * call.current.v_stride + at.head * P;
    m.dacs[lane] = call.dacs + ((at.batch * heads + at.head) * chunks + at.chunk) * Q;
    m.last_row[lane] = (token + Q - 1) * heads + at.head;
  }
  return m;
}

// The exponent of lane `l` at position i of the chunk.
V gather_dacs(const Members& m, Index i) {
  HWY_ALIGN float values[kLanes];
  for (Index lane = 0; lane < kLanes; ++lane) values[lane] = m.dacs[lane][i];
  return load(values);
}

// Vectors [first, end) of 128 * 64: chunks [0, units) in groups of kLanes.
void tail_part(const Mamba3Call& call, const Mamba3Gradients& g, Index units, Index first, Index last, float* scratch) {
  float* const e = scratch;                 // [64 p][128 n][lanes]
  float* const row_n = e + P * N * kLanes;  // [128][lanes]
  float* const row_p = row_n + N * kLanes;  // [64][lanes]
  const Index key_stride = call.heads() * N;
  for (Index group = first; group < last; ++group) {
    const Members m = make_members(call, g, group * kLanes, units);
    transpose(
        kLanes, P * N, [&](Index lane) { return m.e[lane]; }, e, kLanes);
    const V total = gather_dacs(m, Q - 1);
    V sum = zero();
    for (Index j = 0; j < Q; ++j) {
      transpose(
          kLanes, N, [&](Index lane) { return m.keys[lane] + j * key_stride; }, row_n, kLanes);
      transpose(
          kLanes, P, [&](Index lane) { return m.v[lane] + j * call.current.v_stride; }, row_p, kLanes);
      const V left = exp(sub(total, gather_dacs(m, j)));
      for (Index p = 0; p < P; ++p) {
        const V v = load(row_p + p * kLanes);
        const float* HWY_RESTRICT row = e + p * N * kLanes;
        HWY_UNROLL(4)
        for (Index n = 0; n < N; ++n) {
          sum = mad(load(row + n * kLanes), mul(mul(v, load(row_n + n * kLanes)), left), sum);
        }
      }
    }
    const V carry = exp(total);
    for (Index p = 0; p < P; ++p) {
      transpose(
          kLanes, N, [&](Index lane) { return m.state[lane] + p * N; }, row_n, kLanes);
      const float* HWY_RESTRICT row = e + p * N * kLanes;
      for (Index n = 0; n < N; ++n) sum = mad(load(row + n * kLanes), mul(load(row_n + n * kLanes), carry), sum);
    }
    HWY_ALIGN float sums[kLanes];
    store(sum, sums);
    for (Index lane = 0; lane < m.count; ++lane) {
      float& end = g.d_dacs_rec[m.last_row[lane]];
      end = samba::add(end, sums[lane]);
    }
  }
}

}  // namespace
}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {
HWY_EXPORT(tail_lanes);
HWY_EXPORT(tail_scratch);
HWY_EXPORT(tail_part);
}  // namespace

void mamba3_tail_chains(Context& context, const Mamba3Call& call, const Mamba3Gradients& gradients) {
  const Index units = call.batch * call.heads() * (call.chunks() - 1);
  const Index lanes = SAMBA_CPU_KERNEL(context, tail_lanes)();
  const Index floats = SAMBA_CPU_KERNEL(context, tail_scratch)();
  context.parallel((units + lanes - 1) / lanes, 1, [&](Index first, Index last, int thread) {
    SAMBA_CPU_KERNEL(context, tail_part)(call, gradients, units, first, last, context.scratch(thread, floats));
  });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
