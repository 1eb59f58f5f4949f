// The executors made from the one source of GPU kernels. Which of them exist is decided when samba is built.
#pragma once

#include <memory>

#include "samba/backends/registry.h"

namespace samba::cuda {
std::unique_ptr<Executor> make_executor(const ExecutorOptions& options);
bool has_every_kernel(const Executor& executor);  // made by make_executor: of every block
}  // namespace samba::cuda

namespace samba::hip {
std::unique_ptr<Executor> make_executor(const ExecutorOptions& options);
bool has_every_kernel(const Executor& executor);  // made by make_executor: of every block
}  // namespace samba::hip

namespace samba::gpu_host {
std::unique_ptr<Executor> make_executor(const ExecutorOptions& options);
bool has_every_kernel(const Executor& executor);  // made by make_executor: of every block
}  // namespace samba::gpu_host
