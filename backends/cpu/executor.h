// The cpu executor: SIMD (Highway, chosen at run time) and a team of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "samba/backends/registry.h"
#include "samba/kernels/executor.h"

namespace samba::cpu {

std::unique_ptr<Executor> make_cpu_executor(const ExecutorOptions& options);
std::vector<std::string> cpu_instruction_sets();  // best first
// Highway's bit of an instruction set (empty: the best one); 0: the scalar fallback. Refused as in make_executor.
std::int64_t instruction_set_target(const std::string& name);

}  // namespace samba::cpu
