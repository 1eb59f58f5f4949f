// The integer product of numeric_profile fixed15_v1 beside the float32 product, interleaved in one run on one thread:
// CPU time of the fastest repetition and the ratio (above 1: the integer product is faster). Both weights are prepared;
// the integer side quantises its rows in the call. Usage: fixed15_bench [--threads N] [--repetitions R] [--isa NAME]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "bench_options.h"
#include "samba/backends/registry.h"
#include "samba/numerics/philox.h"

namespace {

using samba::Index;

double cpu_seconds(auto&& work) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  work();
  return now() - start;
}

std::vector<float> draw(std::uint32_t stream, Index count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = samba::stream_normal(1, stream, i, 0.0F, 1.0F);
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  const BenchOptions options = parse_bench_options(argc, argv);
  const auto executor = samba::make_executor("cpu", options.executor);
  std::printf("samba %s, 1 thread; billions of multiply-adds a CPU second\n", executor->instruction_set().c_str());
  std::printf("%6s %6s %6s %10s %10s %7s\n", "M", "N", "K", "float32", "fixed15", "ratio");
  for (const Index m : {Index{1}, Index{8}, Index{64}, Index{512}}) {
    for (const Index size : {Index{768}, Index{2048}}) {
      const auto x = draw(1, m * size), weight = draw(2, size * size);
      std::vector<float> y(static_cast<std::size_t>(m * size));
      const auto floats = executor->linear().prepare(size, size, weight.data());
      const auto codes = executor->fixed15().prepare(size, size, weight.data());
      const double terms = static_cast<double>(m * size * size);
      const int inner = std::max(1, static_cast<int>(1e8 / terms));
      double best_float = 1e30, best_integer = 1e30;
      for (int r = 0; r < options.repetitions; ++r) {
        best_float = std::min(best_float, cpu_seconds([&] {
                                for (int i = 0; i < inner; ++i)
                                  executor->linear().linear(*floats, m, x.data(), y.data());
                              }));
        best_integer = std::min(best_integer, cpu_seconds([&] {
                                  for (int i = 0; i < inner; ++i) {
                                    executor->fixed15().linear(*codes, m, x.data(), y.data());
                                  }
                                }));
      }
      const double scale = terms * inner / 1e9;
      std::printf("%6d %6d %6d %10.1f %10.1f %7.2f\n", static_cast<int>(m), static_cast<int>(size),
                  static_cast<int>(size), scale / best_float, scale / best_integer, best_float / best_integer);
    }
  }
  return 0;
}
