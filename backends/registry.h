// The executors that were compiled in, by name.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "samba/core/numeric_mode.h"
#include "samba/kernels/executor.h"

namespace samba {

struct ExecutorOptions {
  int threads = 0;              // 0: all cores this process may use
  std::string instruction_set;  // cpu: "avx512", "avx2", "scalar"; empty: the best of this machine
  NumericMode numeric_mode = NumericMode::identical;
};

std::vector<std::string> executor_names();    // those every machine has: "reference", "cpu"
std::vector<std::string> compiled_devices();  // all that were compiled in: also "cuda", "hip", "gpu-host"
// What computes the products of the modes deterministic and fast here: "OpenBLAS 0.3.21, kernels Zen", or "own
// kernels".
std::string fast_products();

std::vector<std::string> instruction_sets();  // of the cpu executor, those this machine can run, best first

// Throws Error(value) for an unknown name or instruction set, Error(resource) for one that is not there; the message
// lists what is. "auto" takes a GPU that is there and has every kernel, else the cpu; with an instruction set or
// another numeric mode than identical always the cpu. The reference executor knows the mode identical only:
// Error(unsupported).
std::unique_ptr<Executor> make_executor(const std::string& name, const ExecutorOptions& options = {});
// The first of these devices that is compiled in, is there and has every kernel; without one the cpu.
std::unique_ptr<Executor> make_first_executor(std::span<const std::string> devices, const ExecutorOptions& options);

}  // namespace samba
