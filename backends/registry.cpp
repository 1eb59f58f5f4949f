#include "samba/backends/registry.h"

#include <algorithm>

#include "samba/backends/cpu/executor.h"
#include "samba/backends/cpu/openblas.h"
#include "samba/backends/gpu/targets.h"
#include "samba/backends/reference/executor.h"
#include "samba/core/error.h"

namespace samba {

namespace {

std::string known_devices() {
  std::string text = "auto";
  for (const std::string& name : compiled_devices()) text += ", " + name;
  return text;
}

}  // namespace

std::vector<std::string> executor_names() { return {"reference", "cpu"}; }

std::vector<std::string> compiled_devices() {
  return {
    "cpu", "reference",
#if defined(SAMBA_HAS_CUDA)
        "cuda",
#endif
#if defined(SAMBA_HAS_HIP)
        "hip",
#endif
#if defined(SAMBA_HAS_GPU_HOST)
        "gpu-host",
#endif
  };
}

std::vector<std::string> instruction_sets() { return cpu::cpu_instruction_sets(); }

std::string fast_products() {
  const cpu::OpenBlas* blas = cpu::OpenBlas::find();
  return blas == nullptr ? "own kernels" : blas->description();
}

namespace {

bool has_every_kernel([[maybe_unused]] const std::string& device, [[maybe_unused]] const Executor& executor) {
#if defined(SAMBA_HAS_CUDA)
  if (device == "cuda") return cuda::has_every_kernel(executor);
#endif
#if defined(SAMBA_HAS_HIP)
  if (device == "hip") return hip::has_every_kernel(executor);
#endif
#if defined(SAMBA_HAS_GPU_HOST)
  if (device == "gpu-host") return gpu_host::has_every_kernel(executor);
#endif
  return true;
}

}  // namespace

std::unique_ptr<Executor> make_first_executor(std::span<const std::string> devices, const ExecutorOptions& options) {
  const std::vector<std::string> compiled = compiled_devices();
  for (const std::string& device : devices) {
    if (std::find(compiled.begin(), compiled.end(), device) == compiled.end()) continue;
    try {
      std::unique_ptr<Executor> executor = make_executor(device, options);
      if (has_every_kernel(device, *executor)) return executor;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::resource) throw;  // else it is not there
    }
  }
  return make_executor("cpu", options);
}

std::unique_ptr<Executor> make_executor(const std::string& name, const ExecutorOptions& options) {
  if (name == "auto") {
    // Instruction sets and the other numeric modes are the cpu's.
    const bool of_cpu = !options.instruction_set.empty() || options.numeric_mode != NumericMode::identical;
    const std::vector<std::string> devices = {"cuda", "hip"};
    return of_cpu ? make_executor("cpu", options) : make_first_executor(devices, options);
  }
  if (name == "reference") {
    if (options.numeric_mode != NumericMode::identical) {
      refuse_unsupported("numeric mode " + std::string(numeric_mode_name(options.numeric_mode)) +
                         " is not offered by the device reference; accepted: identical");
    }
    return reference::make_reference_executor();
  }
  if (name == "cpu") return cpu::make_cpu_executor(options);
#if defined(SAMBA_HAS_CUDA)
  if (name == "cuda") return cuda::make_executor(options);
#endif
#if defined(SAMBA_HAS_HIP)
  if (name == "hip") return hip::make_executor(options);
#endif
#if defined(SAMBA_HAS_GPU_HOST)
  if (name == "gpu-host") return gpu_host::make_executor(options);
#endif
  if (name == "cuda" || name == "hip" || name == "gpu-host") {
    throw Error(ErrorKind::resource,
                "device '" + name + "' is not compiled into this program; there are: " + known_devices());
  }
  refuse_value("unknown device '" + name + "'; there are: " + known_devices());
}

}  // namespace samba
