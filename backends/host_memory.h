// Memory of the executors that compute on the host.
#pragma once

#include "samba/kernels/memory.h"

namespace samba {

class HostMemory final : public Memory {
 public:
  void* allocate(std::size_t bytes) override;
  void release(void* pointer) noexcept override;
  void copy_to_device(void* device, const void* host, std::size_t bytes) override;
  void copy_to_host(void* host, const void* device, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void fill_zero(void* device, std::size_t bytes) override;
  void synchronize() override {}
  bool is_host() const override { return true; }
};

}  // namespace samba
