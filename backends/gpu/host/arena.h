// Device memory of the host adapter: one range of addresses that only kernels and copies may touch. Between them it is
// closed (mprotect), so that host code which reads or writes device memory stops at once, as it would on a device. New
// memory holds NaN.
#pragma once

#include <cstddef>
#include <map>

#include "samba/kernels/memory.h"

namespace samba::gpu_host {

class Arena {
 public:
  static constexpr std::size_t kReserved = std::size_t{64} << 30;  // addresses, not memory

  explicit Arena(std::size_t capacity);  // in bytes, kReserved at most
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* allocate(std::size_t bytes);
  void release(void* pointer) noexcept;

  // Open while at least one Scope lives.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena) { arena_.open(); }
    ~Scope() { arena_.close(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
  };

 private:
  void open();
  void close() noexcept;

  void* reserved_ = nullptr;
  std::byte* base_ = nullptr;
  std::size_t capacity_;
  std::size_t used_ = 0;                     // the end of the highest allocation there was
  std::map<std::size_t, std::size_t> free_;  // runs below used_: offset, bytes
  std::map<std::size_t, std::size_t> taken_;
  int opened_ = 0;
};

}  // namespace samba::gpu_host
