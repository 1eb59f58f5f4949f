// The limits of the device, measured: fused multiply-adds in registers, reads of memory.
#pragma once

#include <algorithm>
#include <chrono>

#include "samba/backends/gpu/platform.h"
#include "samba/kernels/memory.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr int kChains = 8;  // independent, of one thread

struct FmaLoop {
  Index rounds;
  float* out;
  SAMBA_DEVICE void operator()(Index i) const {
    float acc[kChains];
    SAMBA_UNROLL
    for (int c = 0; c < kChains; ++c) acc[c] = static_cast<float>((i & 7) + c);
    for (Index r = 0; r < rounds; ++r) {
      SAMBA_UNROLL
      for (int c = 0; c < kChains; ++c) acc[c] = fma(acc[c], 0.5F, 1.0F);
    }
    std::uint32_t bits = 0;
    SAMBA_UNROLL
    for (int c = 0; c < kChains; ++c) bits ^= to_bits(acc[c]);
    if (bits == 1) out[0] = acc[0];  // never, but the compiler does not know
  }
};

struct ReadLoop {
  Index runs, threads;
  const FloatRun<4>* values;
  float* out;
  SAMBA_DEVICE void operator()(Index i) const {
    std::uint32_t bits = 0;
    for (Index r = i; r < runs; r += threads) {
      const FloatRun<4> run = values[r];
      for (const float value : run.values) bits ^= to_bits(value);
    }
    if (bits == 1) out[0] = 1.0F;
  }
};

// Work per second of a launch of `work` units, the fastest of a few.
template <class Launch>
double rate(Context& context, double work, Launch&& launch_once) {
  double best = 0.0;
  for (int round = 0; round < 5; ++round) {
    context.memory().synchronize();
    const auto start = std::chrono::steady_clock::now();
    launch_once();
    context.memory().synchronize();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, work / seconds);
  }
  return best;
}

double measure_flops(Context& context) {
  const Index threads = context.most_threads(), rounds = context.multiprocessors() > 1 ? 16384 : 64;
  DeviceArray<float> out(context.memory(), 1);
  return rate(context, 2.0 * kChains * static_cast<double>(threads * rounds), [&] {
    for_each(context, threads, FmaLoop{rounds, out.data()});
  });
}

double measure_read_bytes(Context& context) {
  const Index threads = context.most_threads();
  const Index floats = context.multiprocessors() > 1 ? Index{1} << 28 : Index{1} << 18;
  DeviceArray<float> values(context.memory(), floats), out(context.memory(), 1);
  values.zero();
  const auto* runs = reinterpret_cast<const FloatRun<4>*>(values.data());
  return rate(context, sizeof(float) * static_cast<double>(floats), [&] {
    for_each(context, threads, ReadLoop{floats / 4, threads, runs, out.data()});
  });
}

}  // namespace

}  // namespace samba::SAMBA_GPU
