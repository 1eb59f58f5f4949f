#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/embedding.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/embedding.h"

#include <algorithm>

#include "samba/backends/cpu/packed_cells-inl.h"
#include "samba/backends/cpu/vectors-inl.h"
#include "samba/kernels/weight.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

void gather_rows(Index first, Index end, Index width, const std::int32_t* ids, const float* weight, float* y) {
  const hn::ScalableTag<float> d;
  for (Index t = first; t < end; ++t) {
    const float* row = weight + ids[t] * width;
    over_vectors(d, 0, width, [&](auto io, Index j) HWY_ATTR { io.store(io.load(row + j), y + t * width + j); });
  }
}

void gather_packed_rows(Index first, Index end, const std::int32_t* ids, const ConstPackedWeight& weight, float* y) {
  for (Index t = first; t < end; ++t) {
    expand_rows<true>(packed_rows(weight, ids[t], ids[t] + 1), y + t * weight.columns);
  }
}

// The columns [first, end) of every row, positions ascending.
void scatter_columns(const EmbeddingGradient& g, Index first, Index end) {
  const hn::ScalableTag<float> d;
  if (!g.carry) {
    for (Index row = 0; row < g.vocab; ++row) {
      std::fill(g.d_weight + row * g.width + first, g.d_weight + row * g.width + end, 0.0F);
    }
  }
  for (Index t = 0; t < g.positions; ++t) {
    if (g.ids[t] == g.padding_id) continue;
    float* row = g.d_weight + g.ids[t] * g.width;
    const float* dy = g.dy + t * g.width;
    over_vectors(d, first, end, [&](auto io, Index j) HWY_ATTR {
      io.store(hn::Add(flush_operand(d, io.load(row + j)), flush_operand(d, io.load(dy + j))), row + j);
    });
  }
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {

HWY_EXPORT(gather_rows);
HWY_EXPORT(gather_packed_rows);
HWY_EXPORT(scatter_columns);

constexpr Index kGrain = 32768;    // floats a thread should have to be worth its start
constexpr Index kColumnUnit = 16;  // one cache line: no two threads write to the same one

}  // namespace

void EmbeddingCpu::embedding_forward(Index positions, Index width, const std::int32_t* ids, const float* weight,
                                     float* y) {
  const auto run = SAMBA_CPU_KERNEL(context_, gather_rows);
  context_.parallel(positions, std::max<Index>(1, kGrain / width),
                    [&](Index first, Index end, int) { run(first, end, width, ids, weight, y); });
}

void EmbeddingCpu::embedding_forward(Index positions, Index width, const std::int32_t* ids,
                                     const ConstPackedWeight& weight, float* y) {
  const auto run = SAMBA_CPU_KERNEL(context_, gather_packed_rows);
  context_.parallel(positions, std::max<Index>(1, kGrain / width),
                    [&](Index first, Index end, int) { run(first, end, ids, weight, y); });
}

void EmbeddingCpu::embedding_backward(Index positions, Index vocab, Index width, const std::int32_t* ids,
                                      const float* dy, bool carry, Index padding_id, float* d_weight) {
  const auto run = SAMBA_CPU_KERNEL(context_, scatter_columns);
  const Index columns = kGrain / (positions + vocab) / kColumnUnit * kColumnUnit;
  context_.parallel(width, std::max(kColumnUnit, columns), [&](Index first, Index end, int) {
    run({positions, vocab, width, ids, dy, carry, padding_id, d_weight}, first, end);
  });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
