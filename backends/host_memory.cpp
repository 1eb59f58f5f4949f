#include "samba/backends/host_memory.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "samba/core/error.h"

namespace samba {

namespace {
constexpr std::align_val_t kAlignment{64};
}

void* HostMemory::allocate(std::size_t bytes) {
  void* pointer = ::operator new(bytes, kAlignment, std::nothrow);
  if (pointer == nullptr) {
    throw Error(ErrorKind::resource, "out of memory: " + std::to_string(bytes) + " bytes were asked for");
  }
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
