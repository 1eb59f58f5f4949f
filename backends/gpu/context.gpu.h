// The device an executor computes on: found, described, and tried with a kernel.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/backends/gpu/targets.h"

namespace samba::SAMBA_GPU {

namespace {

struct Probe {
  float* out;
  SAMBA_DEVICE void operator()(Index i) const { out[i] = static_cast<float>(i); }
};

}  // namespace

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
  most_threads_ = static_cast<Index>(properties.multiProcessorCount) * 2048;

  // A program built for other devices says so now, not in the middle of a training run.
  DeviceArray<float> cell(memory_, 1);
  try {
    for_each(*this, 1, Probe{cell.data()});
    memory_.synchronize();
  } catch (const Error& error) {
    throw Error(ErrorKind::resource, "this program has no code for the device " + std::string(properties.name) + " (" +
                                         name_ + "): " + error.what());
  }
}

}  // namespace samba::SAMBA_GPU
