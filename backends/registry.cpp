#include "samba/backends/registry.h"

#include "samba/backends/cpu/executor.h"
#include "samba/backends/cpu/openblas.h"
#include "samba/backends/reference/executor.h"
#include "samba/core/error.h"

namespace samba {

std::vector<std::string> executor_names() { return {"reference", "cpu"}; }

std::vector<std::string> instruction_sets() { return cpu::cpu_instruction_sets(); }

std::string fast_products() {
  const cpu::OpenBlas* blas = cpu::OpenBlas::find();
  return blas == nullptr ? "own kernels" : blas->description();
}

std::unique_ptr<Executor> make_executor(const std::string& name, const ExecutorOptions& options) {
  if (name == "reference") {
    if (options.numeric_mode != NumericMode::identical) {
      refuse_unsupported("numeric mode " + std::string(numeric_mode_name(options.numeric_mode)) +
                         " is not offered by the device reference; accepted: identical");
    }
    return reference::make_reference_executor();
  }
  if (name == "cpu" || name == "auto") return cpu::make_cpu_executor(options);
  if (name == "cuda" || name == "hip") {
    throw Error(ErrorKind::resource,
                "device '" + name + "' is not compiled into this program; there are: auto, cpu, reference");
  }
  refuse_value("unknown device '" + name + "'; there are: auto, cpu, reference");
}

}  // namespace samba
