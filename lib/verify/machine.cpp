#include "samba/verify/machine.h"

#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

namespace samba::verify {
namespace {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name") && !line.starts_with("Processor")) continue;
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos && colon + 2 <= line.size()) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

nlohmann::json machine_json() {
  utsname system{};
  ::uname(&system);
#if defined(__clang__)
  const std::string compiler = std::string("Clang ") + __clang_version__;
#else
  const std::string compiler = std::string("GNU ") + __VERSION__;
#endif
  return {{"processor", processor()},
          {"architecture", system.machine},
          {"cores", usable_cores()},
          {"system", std::string(system.sysname) + " " + system.release},
          {"compiler", compiler}};
}

}  // namespace samba::verify
