// What the executors of GPU kernels say when a device fails, the same for every target: the host adapter's tests inject
// such failures and see these lines.
#pragma once

#include <cstddef>
#include <string>

#include "samba/core/error.h"

namespace samba {

[[noreturn]] inline void refuse_device_memory(std::size_t bytes, const std::string& reason) {
  throw Error(ErrorKind::resource,
              "out of device memory: " + std::to_string(bytes) + " bytes were asked for (" + reason + ")");
}

// A call of the runtime of `target` failed; `what`: what was being done.
[[noreturn]] inline void refuse_device_call(const std::string& target, const std::string& what,
                                            const std::string& reason) {
  throw Error(ErrorKind::resource, "device " + target + ": " + what + ": " + reason);
}

// The first kernel of a process did not run: the program was built for other devices.
[[noreturn]] inline void refuse_device_code(const std::string& device, const Error& failure) {
  throw Error(ErrorKind::resource, "this program has no code for the device " + device + ": " + failure.what());
}

inline constexpr const char* kLaunching = "launching a kernel";

}  // namespace samba
