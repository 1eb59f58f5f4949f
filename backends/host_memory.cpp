#include "samba/backends/host_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "samba/core/error.h"
#include "samba/core/resident.h"

namespace samba {

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kLarge = std::size_t{4} << 20;
constexpr std::size_t kLargePage = std::size_t{2} << 20;
// From here on it is looked whether there is memory: a system may give addresses without it, and end the process later.
constexpr std::size_t kChecked = std::size_t{64} << 20;

}  // namespace

void* HostMemory::allocate(std::size_t bytes) {
  if (bytes >= kChecked) require_memory(bytes, "an array");
  const std::size_t alignment = bytes >= kLarge ? kLargePage : kAlignment;
  void* pointer = nullptr;
  // Not one byte more than was asked for, so that the address sanitizer sees the end.
  if (::posix_memalign(&pointer, alignment, std::max<std::size_t>(1, bytes)) != 0) {
    throw Error(ErrorKind::resource, "out of memory: " + std::to_string(bytes) + " bytes were asked for, " +
                                         mebibytes(available_memory()) + " are available");
  }
  if (bytes >= kLarge) ask_for_large_pages(pointer, bytes);
  return pointer;
}

void HostMemory::release(void* pointer) noexcept { std::free(pointer); }

void HostMemory::copy_to_device(void* device, const void* host, std::size_t bytes) { copy(device, host, bytes); }
void HostMemory::copy_to_host(void* host, const void* device, std::size_t bytes) { copy(host, device, bytes); }

void HostMemory::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void HostMemory::fill_zero(void* device, std::size_t bytes) {
  if (bytes > 0) std::memset(device, 0, bytes);
}

}  // namespace samba
