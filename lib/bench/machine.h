// What this machine is and the most it can do: fused multiply-adds in registers, reads of memory.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "samba/kernels/device_bench.h"

namespace samba::bench {

struct MachineLimits {
  double flops = 0.0;                  // a second, fused multiply-adds in registers
  double read_bytes = 0.0;             // a second, from memory in pages of the ordinary size
  double read_bytes_huge_pages = 0.0;  // the same where the system gives pages of 2 MiB
  double read_bytes_cached = 0.0;      // a second, over and over from a buffer of a quarter of the last-level cache
  double cached_bytes = 0.0;           // what is read over and over stays in the caches up to this size

  // What a kernel could reach.
  double best_read_bytes() const { return read_bytes_huge_pages > read_bytes ? read_bytes_huge_pages : read_bytes; }
};

struct Machine {
  std::string processor;
  int cores = 1;                                   // this process may use
  std::size_t level1 = 0, level2 = 0, level3 = 0;  // bytes of a data cache; 0: none or unknown
  std::string system;                              // "Linux 6.1.0 x86_64"
  std::string compiler;
  std::string time;                                        // UTC, "2026-11-30 10:00:00"
  std::string instruction_set;                             // of the executor that is measured
  std::map<int, MachineLimits> limits;                     // of so many threads
  std::map<std::string, double> flops_by_instruction_set;  // on one thread
  std::string blas;                                        // "OpenBLAS 0.3.21 (Zen)"; empty: there is none

  const MachineLimits& at(int threads) const { return limits.at(threads); }
};

// Fields but for the limits.
Machine describe_machine();

// A buffer of four times the last-level cache, at most this many bytes.
std::size_t memory_buffer_bytes(const Machine& machine);

// Fused multiply-adds in registers of so many threads, in floating-point operations a second: measured in some ten
// milliseconds, less exactly than measure_limits() does.
double short_peak_flops(int threads, const std::string& instruction_set);

// Measures on each number of threads. instruction_set: of the cpu executor.
void measure_limits(Machine& machine, const std::vector<int>& threads, const std::string& instruction_set);

// The same of a device, whose limits do not depend on the number of threads.
void measure_device_limits(Machine& machine, const std::vector<int>& threads, DeviceBench& device);

nlohmann::ordered_json machine_json(const Machine& machine);

}  // namespace samba::bench
