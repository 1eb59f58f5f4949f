// Memory of an executor, and the order of its work.
//
// Kernels take plain pointers into memory of their executor ("device memory"; on the CPU executors it is host memory).
// Every call of an executor is put in order behind the calls before it; a kernel may return before its work is done.
// Whatever brings values to the host (copy_to_host, kernels that return a number) waits for them.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "samba/core/array.h"

namespace samba {

class Memory {
 public:
  virtual ~Memory() = default;

  // At least `bytes` bytes aligned to 64. Throws Error(resource) that says how much was asked for.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* pointer) noexcept = 0;

  virtual void copy_to_device(void* device, const void* host, std::size_t bytes) = 0;
  virtual void copy_to_host(void* host, const void* device, std::size_t bytes) = 0;  // waits
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;              // device to device, no overlap
  virtual void fill_zero(void* device, std::size_t bytes) = 0;
  virtual void synchronize() = 0;
  // Whether kernels read host memory as it lies.
  virtual bool is_host() const { return false; }
};

// An owning run of device memory, uninitialised. Movable.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(Memory& memory, Index count)
      : memory_(&memory),
        data_(count > 0 ? static_cast<T*>(memory.allocate(static_cast<std::size_t>(count) * sizeof(T))) : nullptr),
        count_(count) {}
  DeviceArray(DeviceArray&& other) noexcept
      : memory_(other.memory_), data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() {
    if (data_ != nullptr) memory_->release(data_);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  Index size() const { return count_; }
  std::size_t byte_size() const { return static_cast<std::size_t>(count_) * sizeof(T); }

  void upload(const T* host) { memory_->copy_to_device(data_, host, byte_size()); }
  void download(T* host) const { memory_->copy_to_host(host, data_, byte_size()); }
  void zero() { memory_->fill_zero(data_, byte_size()); }

 private:
  Memory* memory_ = nullptr;
  T* data_ = nullptr;
  Index count_ = 0;
};

// Scratch memory that is taken and given back like a stack. After the first pass of a shape nothing is allocated.
//
//   Workspace::Scope scope(workspace);
//   float* hidden = workspace.floats(rows * width);   // valid until the end of the scope
class Workspace {
 public:
  explicit Workspace(Memory& memory) : memory_(memory) {}

  float* floats(Index count) { return static_cast<float*>(take(count, sizeof(float))); }
  std::int32_t* ints(Index count) { return static_cast<std::int32_t*>(take(count, sizeof(std::int32_t))); }
  std::int16_t* codes(Index count) { return static_cast<std::int16_t*>(take(count, sizeof(std::int16_t))); }
  std::size_t reserved_bytes() const;
  // The most that was in use at once, with the gaps at the ends of blocks.
  std::size_t peak_bytes() const;
  // Before anything is taken: one block of this size, so that calls that need no more find it there.
  void reserve(std::size_t bytes);

  class Scope {
   public:
    explicit Scope(Workspace& workspace) : workspace_(workspace), block_(workspace.block_), used_(workspace.used_) {}
    ~Scope() {
      workspace_.block_ = block_;
      workspace_.used_ = used_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    std::size_t block_;
    std::size_t used_;
  };

 private:
  void* take(Index count, std::size_t element);

  Memory& memory_;
  std::vector<DeviceArray<std::byte>> blocks_;
  std::size_t block_ = 0;  // the block in use
  std::size_t used_ = 0;   // bytes used of it
  std::size_t peak_ = 0;
};

}  // namespace samba
