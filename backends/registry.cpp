#include "samba/backends/registry.h"

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

std::unique_ptr<Executor> make_executor(const std::string& name, const ExecutorOptions& options) {
  if (name == "auto") return make_executor("cpu", options);  // the GPU kernels do not have every block yet
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
