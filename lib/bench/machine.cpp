#include "samba/bench/machine.h"

#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "samba/backends/cpu/peak_loops.h"
#include "samba/backends/registry.h"
#include "samba/bench/measure.h"
#include "samba/core/array.h"
#include "samba/core/error.h"
#include "samba/core/thread_team.h"

namespace samba::bench {

namespace {

constexpr int kRounds = 7;
constexpr Index kFmaRounds = 2'000'000;  // some ten milliseconds
constexpr std::size_t kLeastBuffer = std::size_t{64} << 20, kMostBuffer = std::size_t{1} << 30;
constexpr std::size_t kLeastCached = std::size_t{256} << 10;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::size_t cache_bytes(int name) {
  const long bytes = sysconf(name);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
}

// Runs part(thread) on `threads` threads at once; the least seconds of several rounds from a common start.
double fastest_together(int threads, int rounds, const std::function<void(int)>& part) {
  std::barrier together(threads);
  std::vector<double> begin(static_cast<std::size_t>(threads)), end(begin);
  double best = 1e30;
  const auto run = [&](int thread) {
    const auto i = static_cast<std::size_t>(thread);
    for (int round = 0; round <= rounds; ++round) {
      together.arrive_and_wait();
      begin[i] = wall_seconds();
      part(thread);
      end[i] = wall_seconds();
      together.arrive_and_wait();
      if (thread != 0 || round == 0) continue;  // the first round warms up
      best = std::min(best, *std::max_element(end.begin(), end.end()) - *std::min_element(begin.begin(), begin.end()));
    }
  };
  ThreadTeam(threads).run(threads, run);
  return best;
}

double fma_flops(int threads, const std::string& instruction_set, int rounds = kRounds, Index steps = kFmaRounds) {
  double flops = 0.0;
  const double seconds = fastest_together(threads, rounds, [&](int thread) {
    const double done = cpu::run_fma_loop(instruction_set, steps);
    if (thread == 0) flops = done;
  });
  return flops * threads / seconds;
}

// Memory of its own pages, asked to be large ones or small ones.
class Pages {
 public:
  Pages(std::size_t bytes, bool huge) : mapped_(bytes + kHugePage), bytes_(bytes) {
    memory_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) {
      throw Error(ErrorKind::resource, "out of memory: " + std::to_string(mapped_) + " bytes for the read bandwidth");
    }
    madvise(memory_, mapped_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    const auto address = reinterpret_cast<std::uintptr_t>(memory_);
    first_ = reinterpret_cast<float*>((address + kHugePage - 1) / kHugePage * kHugePage);
    std::fill_n(first_, bytes_ / sizeof(float), 1.0F);
  }
  ~Pages() { munmap(memory_, mapped_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  const float* data() const { return first_; }
  Index count() const { return static_cast<Index>(bytes_ / sizeof(float)); }

 private:
  std::size_t mapped_, bytes_;
  void* memory_ = nullptr;
  float* first_ = nullptr;
};

double read_bytes(int threads, const std::string& instruction_set, const Pages& pages) {
  const Index part = pages.count() / threads;
  volatile float sink = 0.0F;
  const double seconds = fastest_together(threads, kRounds, [&](int thread) {
    sink = cpu::run_read_loop(instruction_set, pages.data() + thread * part, part);
  });
  return static_cast<double>(part) * threads * sizeof(float) / seconds;
}

}  // namespace

Machine describe_machine() {
  Machine machine;
  machine.processor = processor_name();
  machine.cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  machine.level1 = cache_bytes(_SC_LEVEL1_DCACHE_SIZE);
  machine.level2 = cache_bytes(_SC_LEVEL2_CACHE_SIZE);
  machine.level3 = cache_bytes(_SC_LEVEL3_CACHE_SIZE);
  utsname system{};
  if (uname(&system) == 0) {
    machine.system = std::string(system.sysname) + " " + system.release + " " + system.machine;
  }
#if defined(__clang__)
  machine.compiler = "clang " __clang_version__;
#else
  machine.compiler = "gcc " __VERSION__;
#endif
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &utc);
  machine.time = text;
  return machine;
}

std::size_t memory_buffer_bytes(const Machine& machine) {
  return std::clamp(4 * std::max(machine.level3, machine.level2), kLeastBuffer, kMostBuffer);
}

double short_peak_flops(int threads, const std::string& instruction_set) {
  constexpr int kShortRounds = 5;
  constexpr Index kShortSteps = 200'000;  // some milliseconds
  return fma_flops(threads, instruction_set, kShortRounds, kShortSteps);
}

void measure_limits(Machine& machine, const std::vector<int>& threads, const std::string& instruction_set) {
  machine.instruction_set = instruction_set;
  for (const std::string& set : instruction_sets()) machine.flops_by_instruction_set[set] = fma_flops(1, set);
  const std::size_t bytes = memory_buffer_bytes(machine);
  const Pages small(bytes, false), huge(bytes, true);
  const Pages cached(std::max(std::max(machine.level3, machine.level2) / 4, kLeastCached), true);
  for (const int count : threads) {
    MachineLimits& limits = machine.limits[count];
    for (const auto& [set, flops] : machine.flops_by_instruction_set) {
      const double measured = count == 1 ? flops : fma_flops(count, set);
      limits.flops = std::max(limits.flops, measured);  // a kernel may use any of them
    }
    limits.cached_bytes = 0.75 * static_cast<double>(std::max(machine.level3, machine.level2));
    limits.read_bytes_cached = read_bytes(count, instruction_set, cached);
    limits.read_bytes = read_bytes(count, instruction_set, small);
    limits.read_bytes_huge_pages = read_bytes(count, instruction_set, huge);
  }
}

void measure_device_limits(Machine& machine, const std::vector<int>& threads, DeviceBench& device) {
  machine.instruction_set = device.device_description();
  machine.blas = device.blas_description();
  MachineLimits limits;
  limits.flops = device.measure_flops();
  limits.read_bytes = limits.read_bytes_huge_pages = limits.read_bytes_cached = device.measure_read_bytes();
  for (const int count : threads) machine.limits[count] = limits;
}

nlohmann::ordered_json machine_json(const Machine& machine) {
  nlohmann::ordered_json json{
      {"processor", machine.processor}, {"cores", machine.cores},         {"instruction_set", machine.instruction_set},
      {"level1_bytes", machine.level1}, {"level2_bytes", machine.level2}, {"level3_bytes", machine.level3},
      {"system", machine.system},       {"compiler", machine.compiler},   {"time_utc", machine.time}};
  for (const auto& [set, flops] : machine.flops_by_instruction_set) json["fma_gflops"][set] = flops / 1e9;
  for (const auto& [threads, limits] : machine.limits) {
    json["limits"].push_back({{"threads", threads},
                              {"fma_gflops", limits.flops / 1e9},
                              {"read_gb_per_s", limits.read_bytes / 1e9},
                              {"read_gb_per_s_2mib_pages", limits.read_bytes_huge_pages / 1e9},
                              {"cache_read_gb_per_s", limits.read_bytes_cached / 1e9}});
  }
  json["blas"] = machine.blas.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(machine.blas);
  return json;
}

}  // namespace samba::bench
