// An executor that computes nothing: it counts the memory that is asked of it. What runs on it, a stack or a trainer,
// takes the memory that it would take elsewhere, in addresses that hold nothing; whatever is read from there is 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "samba/kernels/executor.h"

namespace samba {

class DryMemory final : public Memory {
 public:
  void* allocate(std::size_t bytes) override;
  void release(void* pointer) noexcept override;
  void copy_to_device(void*, const void*, std::size_t) override {}
  void copy_to_host(void* host, const void* device, std::size_t bytes) override;  // zeros
  void copy(void*, const void*, std::size_t) override {}
  void fill_zero(void*, std::size_t) override {}
  void synchronize() override {}

  std::uint64_t live() const { return live_; }  // bytes that are allocated
  std::uint64_t peak() const { return peak_; }  // since the last start_peak()
  void start_peak() { peak_ = live_; }

 private:
  std::uintptr_t next_ = std::uintptr_t{1} << 46;
  std::map<std::uintptr_t, std::size_t> sizes_;
  std::uint64_t live_ = 0;
  std::uint64_t peak_ = 0;
};

// The kernels of an executor that stands for `real`: prepared weights have the sizes they have there.
class DryExecutor : public Executor {
 public:
  virtual DryMemory& dry_memory() = 0;
  virtual std::uint64_t prepared_bytes() const = 0;  // of the prepared weights that exist
};

std::unique_ptr<DryExecutor> make_dry_executor(Executor& real);

}  // namespace samba
