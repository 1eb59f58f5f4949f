// A decode step of Mamba-2 in the open chunk (spec 31 section 5): the new row alone.
//
//   1. row_part:   the step sizes of the chunk's rows, G of the new row           units (batch, 16 rows)
//   2. heads_part: per (batch, group of heads) the rest of spec 31 section 3      Y_diag, Y_off, skip, gate
//
// Xd, the segment sums and M are made where they are used: rows, heads and states lie in lanes, every chain in its
// own order. Rows after the new one are padding: their terms turn a -0 into +0 (section 4). Of the step that completes
// the chunk this is all but the state behind it (mamba2_scan.cpp).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba2_step.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/chunk_step-inl.h"
#include "samba/backends/cpu/mamba2-inl.h"
#include "samba/backends/cpu/mamba2.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace {
using namespace mamba2_lanes;

constexpr int kHeadVectors = static_cast<int>(P / kLanes);
constexpr int kGroup = kHeadVectors <= 4 ? 4 : 1;  // heads whose sums fit the registers together

Index step_group() { return kGroup; }
Index step_scratch() { return kGroup * 4 * Q; }

// Units [first, last) of (batch, block of kMamba2StepRows rows).
void row_part(const Mamba2Call& call, Index first, Index last) {
  const Index working = call.working_rows();
  const Index blocks = (working + kMamba2StepRows - 1) / kMamba2StepRows;
  for (Index unit = first; unit < last; ++unit) {
    const ChunkOf c(call, unit / blocks, 0, 0);
    const Index begin = unit % blocks * kMamba2StepRows;
    const Index end = std::min(begin + kMamba2StepRows, working);
    step_sizes(call, c.b * working + begin, c.b * working + end);
    for (Index row = begin; row < end; row += kLanes) {
      V sums[1];
      dot_rows(
          N, c.queries().data, [&](Index r) HWY_ATTR { return c.keys(std::min(row + r, end - 1)); },
          [](int, V column) HWY_ATTR { return column; }, sums);
      store(sums[0], call.scores + c.b * Q + row);
    }
  }
}

// y[head][p] = chain over the rows [first, end) of mad(M, x * dt, .), kHeads heads side by side from c.h on.
template <int kHeads>
HWY_INLINE void leaf(const ChunkOf& c, Index first, Index end, const float* HWY_RESTRICT dt,
                     const float* HWY_RESTRICT weights, V (&acc)[kHeads][kHeadVectors]) {
  for (auto& head : acc) {
    for (V& sum : head) sum = zero();
  }
  for (Index j = first; j < end; ++j) {
    const float* HWY_RESTRICT x = c.x(j);
    HWY_UNROLL(4)
    for (int k = 0; k < kHeads; ++k) {
      const V step = broadcast(dt + k * Q + j), weight = broadcast(weights + k * Q + j);
      HWY_UNROLL(16)
      for (int v = 0; v < kHeadVectors; ++v) {
        acc[k][v] = mad(weight, mul(load(x + k * P + v * kLanes), step), acc[k][v]);
      }
    }
  }
}

// Heads c.h .. c.h + kHeads - 1.
template <int kHeads>
void step_heads(ChunkOf c, float* scratch) {
  const Mamba2Call& call = *c.call;
  const Index row = c.real - 1, heads = call.heads();
  float* const dt = scratch;  // [kHeads][256] each
  float* const da = dt + kHeads * Q;
  float* const sums = da + kHeads * Q;
  float* const y_diag = sums + kHeads * Q;
  const Index width = round_up_to_lanes(c.real);
  transpose(
      c.real, kHeads, [&](Index j) { return call.dt + (c.b * c.real + j) * heads + c.h; }, dt, Q);
  for (int k = 0; k < kHeads; ++k) {
    std::fill(dt + k * Q + c.real, dt + k * Q + width, 0.0F);
    const V rate = broadcast(call.a + c.h + k);
    each_vector(width, [&](Index j) { store(mul(load(dt + k * Q + j), rate), da + k * Q + j); });
  }
  segment_sums<kHeads>(row, da, Q, sums);
  for (int k = 0; k < kHeads; ++k) {
    float* weights = sums + k * Q;
    each_vector(width,
                [&](Index j) { store(mul(load(call.scores + c.b * Q + j), exp(load(weights + j))), weights + j); });
  }
  V first[kHeads][kHeadVectors];
  leaf(c, 0, std::min(c.real, Q / 2), dt, sums, first);
  for (int k = 0; k < kHeads; ++k) {
    for (int v = 0; v < kHeadVectors; ++v) store(first[k][v], y_diag + k * Q + v * kLanes);
  }
  V second[kHeads][kHeadVectors];
  leaf(c, Q / 2, c.real, dt, sums, second);
  for (int k = 0; k < kHeads; ++k) {
    for (int v = 0; v < kHeadVectors; ++v) {
      float* y = y_diag + k * Q + v * kLanes;
      store(add(load(y), c.real == Q ? second[k][v] : add(second[k][v], zero())), y);
    }
  }
  for (int k = 0; k < kHeads; ++k, ++c.h) {
    const V reach = exp(constant(sum_terms(row, da + k * Q)));
    const float* y = y_diag + k * Q;
    state_dots(P, N, c.queries().data, call.h + (c.b * heads + c.h) * kCells,
               [&](Index p, V sum) HWY_ATTR { write_output(c, row, p, add(load(y + p), mul(sum, reach))); });
  }
}

// Units [first, last) of (batch, group of kGroup heads).
void heads_part(const Mamba2Call& call, Index first, Index last, float* scratch) {
  const Index heads = call.heads(), groups = (heads + kGroup - 1) / kGroup;
  for (Index unit = first; unit < last; ++unit) {
    const Index begin = unit % groups * kGroup, end = std::min(begin + kGroup, heads);
    if (end - begin == kGroup) {
      step_heads<kGroup>(ChunkOf(call, unit / groups, 0, begin), scratch);
    } else {
      for (Index h = begin; h < end; ++h) step_heads<1>(ChunkOf(call, unit / groups, 0, h), scratch);
    }
  }
}

}  // namespace
}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {
HWY_EXPORT(step_group);
HWY_EXPORT(step_scratch);
HWY_EXPORT(row_part);
HWY_EXPORT(heads_part);

constexpr Index kRowGrain = 4;  // blocks of rows a thread should have
}  // namespace

bool Mamba2Cpu::is_step(const Mamba2Call& call) {
  return call.tokens == 1 && call.working_rows() <= mamba2::kChunk && call.h != nullptr && call.h_last == nullptr &&
         call.pass_states == nullptr && call.y == nullptr;
}

void Mamba2Cpu::step(const Mamba2Call& call) {
  const Index blocks = (call.working_rows() + kMamba2StepRows - 1) / kMamba2StepRows;
  context_.parallel(call.batch * blocks, kRowGrain, [&](Index first, Index last, int) {
    SAMBA_CPU_KERNEL(context_, row_part)(call, first, last);
  });
  const Index group = SAMBA_CPU_KERNEL(context_, step_group)();
  const Index floats = SAMBA_CPU_KERNEL(context_, step_scratch)();
  const Index groups = (call.heads() + group - 1) / group;
  context_.parallel(call.batch * groups, 1, [&](Index first, Index last, int thread) {
    SAMBA_CPU_KERNEL(context_, heads_part)(call, first, last, context_.scratch(thread, floats));
  });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
