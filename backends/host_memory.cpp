#include "samba/backends/host_memory.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "samba/core/error.h"
#include "samba/core/resident.h"

namespace samba {

namespace {

constexpr std::align_val_t kAlignment{64};
constexpr std::size_t kLarge = std::size_t{4} << 20;
// From here on it is looked whether there is memory: a system may give addresses without it, and end the process later.
constexpr std::size_t kChecked = std::size_t{64} << 20;

// Asks for pages of 2 MiB: a product that streams a large weight walks through fewer of them. What lies inside the
// allocation alone is advised, so that no more memory becomes resident than is used.
void advise_large_pages([[maybe_unused]] void* pointer, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__)
  constexpr std::uintptr_t kPage = 4096;
  const std::uintptr_t first = (reinterpret_cast<std::uintptr_t>(pointer) + kPage - 1) / kPage * kPage;
  const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(pointer) + bytes) / kPage * kPage;
  // Not granted is not an error: the memory is there all the same.
  (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

}  // namespace

void* HostMemory::allocate(std::size_t bytes) {
  if (bytes >= kChecked) require_memory(bytes, "an array");
  void* pointer = ::operator new(bytes, kAlignment, std::nothrow);
  if (pointer == nullptr) {
    throw Error(ErrorKind::resource, "out of memory: " + std::to_string(bytes) + " bytes were asked for, " +
                                         mebibytes(available_memory()) + " are available");
  }
  if (bytes >= kLarge) advise_large_pages(pointer, bytes);
  return pointer;
}

void HostMemory::release(void* pointer) noexcept { ::operator delete(pointer, kAlignment); }

void HostMemory::copy_to_device(void* device, const void* host, std::size_t bytes) { copy(device, host, bytes); }
void HostMemory::copy_to_host(void* host, const void* device, std::size_t bytes) { copy(host, device, bytes); }

void HostMemory::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void HostMemory::fill_zero(void* device, std::size_t bytes) {
  if (bytes > 0) std::memset(device, 0, bytes);
}

}  // namespace samba
