// The identical matrix product of the cpu executor beside OpenBLAS sgemm, interleaved in one run: GFLOP/s of the
// fastest repetition and the ratio. Both libraries keep threads of their own, and OpenBLAS's go on spinning for some
// milliseconds after a call: before a side is timed the other one is left to fall asleep. Usage: gemm_bench [--threads
// N] [--repetitions R] [--isa NAME]
#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "bench_options.h"
#include "samba/backends/registry.h"
#include "samba/numerics/philox.h"

extern "C" void openblas_set_num_threads(int threads);
extern "C" char* openblas_get_corename();

namespace {

using samba::Index;

constexpr std::chrono::milliseconds kOtherSideSleeps{60};

// Seconds of the second of two calls: the first wakes this side's threads.
double seconds_of(auto&& work) {
  std::this_thread::sleep_for(kOtherSideSleeps);
  work();
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<float> draw(std::uint32_t stream, Index count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = samba::stream_uniform(1, stream, i, -1.0F, 2.0F);
  return values;
}

struct Row {
  const char* name;
  samba::Layout layout;
  bool prepared;
  Index m, n, k;
};

}  // namespace

int main(int argc, char** argv) {
  const BenchOptions options = parse_bench_options(argc, argv);
  const auto executor = samba::make_executor("cpu", options.executor);
  openblas_set_num_threads(executor->threads());
  std::printf("samba %s, %d threads; OpenBLAS kernel %s\n", executor->instruction_set().c_str(), executor->threads(),
              openblas_get_corename());
  std::printf("%-12s %6s %6s %6s %10s %10s %7s\n", "product", "M", "N", "K", "samba", "openblas", "ratio");

  using samba::Layout;
  std::vector<Row> rows;
  for (const Index m : {Index{1}, Index{4}, Index{8}, Index{16}, Index{64}, Index{512}}) {
    for (const Index size : {Index{768}, Index{2048}}) {
      rows.push_back({"NT prepared", Layout::nt, true, m, size, size});
    }
  }
  rows.push_back({"NT", Layout::nt, false, 512, 768, 768});
  rows.push_back({"NN", Layout::nn, false, 512, 768, 768});
  rows.push_back({"TN", Layout::tn, false, 768, 768, 512});

  for (const Row& row : rows) {
    const auto a = draw(1, row.m * row.k);
    const auto b = draw(2, row.n * row.k);
    std::vector<float> c(static_cast<std::size_t>(row.m * row.n)), d(c.size());
    auto& linear = executor->linear();
    const auto prepared = linear.prepare(row.n, row.k, b.data());
    const double flops = 2.0 * static_cast<double>(row.m) * static_cast<double>(row.n) * static_cast<double>(row.k);
    const int inner = std::max(1, static_cast<int>(2e8 / flops));
    const auto ours = [&] {
      for (int i = 0; i < inner; ++i) {
        if (row.prepared) {
          linear.linear(*prepared, row.m, a.data(), c.data());
        } else {
          linear.gemm(row.layout, row.m, row.n, row.k, a.data(), b.data(), c.data());
        }
      }
    };
    const auto m = static_cast<int>(row.m), n = static_cast<int>(row.n), k = static_cast<int>(row.k);
    const auto theirs = [&] {
      for (int i = 0; i < inner; ++i) {
        cblas_sgemm(CblasRowMajor, row.layout == Layout::tn ? CblasTrans : CblasNoTrans,
                    row.layout == Layout::nt ? CblasTrans : CblasNoTrans, m, n, k, 1.0F, a.data(),
                    row.layout == Layout::tn ? m : k, b.data(), row.layout == Layout::nt ? k : n, 0.0F, d.data(), n);
      }
    };
    double best_ours = 1e30, best_theirs = 1e30;
    ours();
    theirs();
    for (int r = 0; r < options.repetitions; ++r) {
      best_ours = std::min(best_ours, seconds_of(ours));
      best_theirs = std::min(best_theirs, seconds_of(theirs));
    }
    const double scale = flops * inner / 1e9;
    std::printf("%-12s %6d %6d %6d %10.1f %10.1f %7.2f\n", row.name, m, n, k, scale / best_ours, scale / best_theirs,
                best_theirs / best_ours);
  }
  return 0;
}
