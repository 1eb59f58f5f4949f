// The device an executor computes on: found and described.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/backends/gpu/targets.h"

namespace samba::SAMBA_GPU {

Context::Context(const ExecutorOptions& options) {
  SAMBA_DEVICE_PROPERTIES properties{};
  check(SAMBA_RUNTIME(GetDeviceProperties)(&properties, 0), "reading the properties of device 0");
#if defined(__HIP__)
  name_ = properties.gcnArchName;
#else
  name_ = "sm_" + std::to_string(10 * properties.major + properties.minor);
#endif
  if (!options.instruction_set.empty() && options.instruction_set != name_) {
    refuse_value("instruction set '" + options.instruction_set + "' is not that of the device " + kTargetName +
                 "; there is: " + name_);
  }
  description_ = std::string(properties.name) + " (" + name_ + ")";
  multiprocessors_ = properties.multiProcessorCount;
  most_threads_ = multiprocessors_ * 2048;
}

}  // namespace samba::SAMBA_GPU
