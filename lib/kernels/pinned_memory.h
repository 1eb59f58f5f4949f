// Host memory that a device copies to and from at full speed: an offer that the Memory of a device makes beside its own
// interface (a dynamic_cast finds it).
#pragma once

#include <cstddef>

namespace samba {

class PinnedMemory {
 public:
  virtual ~PinnedMemory() = default;
  // Throws Error(resource) that says how much was asked for.
  virtual void* allocate_pinned(std::size_t bytes) = 0;
  virtual void release_pinned(void* pointer) noexcept = 0;
};

}  // namespace samba
