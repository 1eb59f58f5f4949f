#include "samba/core/resident.h"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "samba/core/error.h"

namespace samba {

namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

// The number of a line "NAME: 123 kB" of a file of the system, in bytes; `missing` when there is none.
std::uint64_t field_bytes(const char* path, const std::string& name, std::uint64_t missing) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name + ":")) continue;
    std::uint64_t kibibytes = 0;
    std::istringstream(line.substr(name.size() + 1)) >> kibibytes;
    return kibibytes * 1024;
  }
  return missing;
}

// A file that holds a number; unlimited when it holds a word ("max") or is not there.
std::uint64_t number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? number : kUnlimited;
}

// What the control groups of this process leave, the innermost first and every one around it.
std::uint64_t left_by_control_groups() {
  std::ifstream groups("/proc/self/cgroup");
  std::uint64_t left = kUnlimited;
  for (std::string line; std::getline(groups, line);) {
    const bool unified = line.starts_with("0::");
    if (!unified && line.find(":memory:") == std::string::npos) continue;
    const std::filesystem::path root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const char* most = unified ? "memory.max" : "memory.limit_in_bytes";
    const char* now = unified ? "memory.current" : "memory.usage_in_bytes";
    std::filesystem::path group = line.substr(line.find_last_of(':') + 1);
    for (;; group = group.parent_path()) {
      const std::filesystem::path folder = root / group.relative_path();
      const std::uint64_t limit = number_in(folder / most);
      const std::uint64_t used = number_in(folder / now);
      if (limit != kUnlimited && used != kUnlimited) left = std::min(left, limit > used ? limit - used : 0);
      if (!group.has_relative_path()) break;
    }
  }
  return left;
}

std::uint64_t left_by_limit(int which, std::uint64_t used) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(which), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return kUnlimited;
  }
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

}  // namespace

std::uint64_t resident_bytes() { return field_bytes("/proc/self/status", "VmRSS", 0); }

std::uint64_t peak_resident_bytes() { return field_bytes("/proc/self/status", "VmHWM", 0); }

bool reset_peak_resident() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return static_cast<bool>(file);
}

std::uint64_t heap_bytes() {
#if defined(__GLIBC__) && (__GLIBC__ > 2 || (__GLIBC__ == 2 && __GLIBC_MINOR__ >= 33))
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
#else
  return resident_bytes();
#endif
}

std::uint64_t available_memory() {
  const std::uint64_t machine = field_bytes("/proc/meminfo", "MemAvailable", kUnlimited);
  const std::uint64_t space = left_by_limit(RLIMIT_AS, field_bytes("/proc/self/status", "VmSize", 0));
  const std::uint64_t data = left_by_limit(RLIMIT_DATA, field_bytes("/proc/self/status", "VmData", 0));
  return std::min({machine, left_by_control_groups(), space, data});
}

void require_memory(std::uint64_t bytes, const std::string& what) {
  const std::uint64_t available = available_memory();
  if (bytes <= available) return;
  throw Error(ErrorKind::resource,
              what + " needs " + mebibytes(bytes) + " of memory, " + mebibytes(available) + " are available");
}

void ask_for_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__)
  constexpr std::uintptr_t kLargePage = std::uintptr_t{2} << 20;
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (address + kLargePage - 1) / kLargePage * kLargePage;
  const std::uintptr_t end = (address + bytes) / kLargePage * kLargePage;
  // Not granted is not an error: the memory is there all the same.
  if (first < end) (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

std::string mebibytes(std::uint64_t bytes) {
  char text[48];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1024.0 * 1024.0));
  return text;
}

}  // namespace samba
