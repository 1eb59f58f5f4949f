#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/peak_loops.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include <hwy/highway.h>

#include "samba/backends/cpu/executor.h"
#include "samba/backends/cpu/peak_loops.h"

#ifndef SAMBA_CPU_PEAK_LOOPS
#define SAMBA_CPU_PEAK_LOOPS
namespace samba::cpu {
constexpr int kFmaChains = 12;
}
#endif

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Twelve chains hide the latency of a fused step on every core known: four or five cycles, two steps a cycle. Each goes
// to x = x/2 + 1, so values stay near 2; each has a start of its own that the compiler cannot know, or it would make
// one of them all.
double fma_rounds(const volatile float* starts, Index rounds, volatile float* sink) {
  const hn::ScalableTag<float> d;
  const auto half = hn::Set(d, 0.5F), one = hn::Set(d, 1.0F);
  const auto start = [&](int chain) HWY_ATTR { return hn::Set(d, starts[chain]); };
  auto c0 = start(0), c1 = start(1), c2 = start(2), c3 = start(3), c4 = start(4), c5 = start(5);
  auto c6 = start(6), c7 = start(7), c8 = start(8), c9 = start(9), c10 = start(10), c11 = start(11);
  for (Index i = 0; i < rounds; ++i) {
    c0 = hn::MulAdd(c0, half, one), c1 = hn::MulAdd(c1, half, one), c2 = hn::MulAdd(c2, half, one);
    c3 = hn::MulAdd(c3, half, one), c4 = hn::MulAdd(c4, half, one), c5 = hn::MulAdd(c5, half, one);
    c6 = hn::MulAdd(c6, half, one), c7 = hn::MulAdd(c7, half, one), c8 = hn::MulAdd(c8, half, one);
    c9 = hn::MulAdd(c9, half, one), c10 = hn::MulAdd(c10, half, one), c11 = hn::MulAdd(c11, half, one);
  }
  const auto a = hn::Add(hn::Add(hn::Add(c0, c1), hn::Add(c2, c3)), hn::Add(c4, c5));
  const auto b = hn::Add(hn::Add(hn::Add(c6, c7), hn::Add(c8, c9)), hn::Add(c10, c11));
  *sink = hn::GetLane(hn::Add(a, b));
  return 2.0 * kFmaChains * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
}

float read_sum(const float* values, Index count) {
  const hn::ScalableTag<float> d;
  const auto n = static_cast<Index>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  Index i = 0;
  for (; i + 4 * n <= count; i += 4 * n) {
    s0 = hn::Add(s0, hn::LoadU(d, values + i));
    s1 = hn::Add(s1, hn::LoadU(d, values + i + n));
    s2 = hn::Add(s2, hn::LoadU(d, values + i + 2 * n));
    s3 = hn::Add(s3, hn::LoadU(d, values + i + 3 * n));
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; i < count; ++i) sum += values[i];
  return sum;
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

HWY_EXPORT(fma_rounds);
HWY_EXPORT(read_sum);

namespace {

template <class F, std::size_t kEntries>
F entry_of(const std::string& instruction_set, F const (&table)[kEntries]) {
  hwy::ChosenTarget chosen;
  chosen.Update(instruction_set_target(instruction_set));
  return kEntries == 1 ? table[0] : table[chosen.GetIndex()];
}

}  // namespace

double run_fma_loop(const std::string& instruction_set, Index rounds) {
  volatile float starts[kFmaChains];
  for (int chain = 0; chain < kFmaChains; ++chain) starts[chain] = 1.0F + 0.125F * static_cast<float>(chain);
  volatile float sink = 0.0F;
  return entry_of(instruction_set, HWY_DISPATCH_TABLE(fma_rounds))(starts, rounds, &sink);
}

float run_read_loop(const std::string& instruction_set, const float* values, Index count) {
  return entry_of(instruction_set, HWY_DISPATCH_TABLE(read_sum))(values, count);
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
