// Decoding reads a matrix once a token: the product of M rows with a large prepared weight in float32, bfloat16 and
// int8, interleaved in one run. CPU milliseconds of the fastest repetition, bytes read, and the time beside float32.
// Usage: packed_bench [--threads N] [--repetitions R] [--isa NAME]
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "bench_options.h"
#include "samba/backends/registry.h"
#include "samba/numerics/packed_weight.h"
#include "samba/numerics/philox.h"

namespace {

using samba::Index;

constexpr samba::WeightFormat kFormats[] = {samba::WeightFormat::float32, samba::WeightFormat::bfloat16,
                                            samba::WeightFormat::int8};

double cpu_seconds() {
  std::timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

samba::Array draw(std::uint32_t stream, Index rows, Index columns) {
  samba::Array values = samba::Array::zeros({rows, columns});
  for (std::size_t i = 0; i < values.floats().size(); ++i) {
    values.floats()[i] = samba::stream_uniform(1, stream, i, -1.0F, 2.0F);
  }
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  const BenchOptions options = parse_bench_options(argc, argv);
  const auto executor = samba::make_executor("cpu", options.executor);
  samba::LinearKernels& linear = executor->linear();
  const Index n = 6144, k = 4096;
  const samba::Array weight = draw(2, n, k);
  std::vector<std::unique_ptr<samba::PreparedWeight>> prepared;
  for (const samba::WeightFormat format : kFormats) {
    const samba::Weight stored = samba::pack_one(weight, format);
    prepared.push_back(stored.is_packed() ? linear.prepare(stored.packed())
                                          : linear.prepare(n, k, stored.array().floats().data()));
  }
  std::printf("samba %s, %d threads, N %d, K %d\n", executor->instruction_set().c_str(), executor->threads(),
              static_cast<int>(n), static_cast<int>(k));
  std::printf("%4s %9s %9s %9s %7s\n", "M", "format", "MB read", "CPU ms", "time");
  for (const Index m : {Index{1}, Index{8}, Index{64}}) {
    const samba::Array x = draw(1, m, k);
    std::vector<float> y(static_cast<std::size_t>(m * n));
    double best[std::size(kFormats)];
    std::fill(std::begin(best), std::end(best), 1e30);
    for (int r = 0; r <= options.repetitions; ++r) {
      for (std::size_t f = 0; f < std::size(kFormats); ++f) {
        const double start = cpu_seconds();
        linear.linear(*prepared[f], m, x.floats().data(), y.data());
        if (r > 0) best[f] = std::min(best[f], cpu_seconds() - start);
      }
    }
    for (std::size_t f = 0; f < std::size(kFormats); ++f) {
      std::printf("%4d %9s %9.1f %9.2f %7.2f\n", static_cast<int>(m),
                  std::string(samba::weight_format_name(kFormats[f])).c_str(),
                  static_cast<double>(prepared[f]->byte_size()) / 1e6, 1e3 * best[f], best[f] / best[0]);
    }
  }
  return 0;
}
