// What all kernels of one executor of a device share: its stream, its memory, its scratch. For CUDA and HIP, whose
// runtimes have the same functions under two prefixes.
#pragma once

#include <string>

#include "samba/backends/gpu/device_errors.h"
#include "samba/backends/gpu/device_graph.h"
#include "samba/backends/gpu/step_queue.h"
#include "samba/backends/registry.h"
#include "samba/core/error.h"
#include "samba/kernels/memory.h"
#include "samba/kernels/pinned_memory.h"

namespace samba::SAMBA_GPU {

using Status = SAMBA_RUNTIME(Error_t);

inline constexpr Status kSuccess = SAMBA_RUNTIME(Success);

// The extent of a launch in blocks.
struct Grid {
  unsigned x = 1, y = 1, z = 1;
};

#if defined(__HIP__)
inline constexpr const char* kTargetName = "hip";
#else
inline constexpr const char* kTargetName = "cuda";
#endif

// Error(resource) when a call of the runtime failed. `what`: what was being done.
inline void check(Status status, const char* what) {
  if (status != kSuccess) refuse_device_call(kTargetName, what, SAMBA_RUNTIME(GetErrorString)(status));
}

class Context;

class DeviceMemory final : public Memory, public PinnedMemory {
 public:
  explicit DeviceMemory(Context& context) : context_(context) {}

  void* allocate(std::size_t bytes) override;
  void release(void* pointer) noexcept override;
  void copy_to_device(void* device, const void* host, std::size_t bytes) override;
  void copy_to_host(void* host, const void* device, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void fill_zero(void* device, std::size_t bytes) override;
  void* allocate_pinned(std::size_t bytes) override;
  void release_pinned(void* pointer) noexcept override;
  void synchronize() override;

 private:
  void transfer(void* to, const void* from, std::size_t bytes, SAMBA_RUNTIME(MemcpyKind) kind, const char* what);
  Context& context_;
};

// Why there is no device. The CUDA runtime calls a driver that is not there one that is too old; its version is then 0.
inline std::string absence(Status status) {
#if !defined(__HIP__)
  int version = 0;
  if (status == cudaErrorInsufficientDriver && cudaDriverGetVersion(&version) == cudaSuccess && version == 0) {
    return "no CUDA driver is installed";
  }
#endif
  return SAMBA_RUNTIME(GetErrorString)(status);
}

// A stream of the first device; Error(resource) in one line when there is none.
class Stream {
 public:
  Stream() {
    int devices = 0;
    const Status status = SAMBA_RUNTIME(GetDeviceCount)(&devices);
    if (status != kSuccess) {
      (void)SAMBA_RUNTIME(GetLastError)();
      throw Error(ErrorKind::resource, "device '" + std::string(kTargetName) + "' is not there: " + absence(status));
    }
    if (devices == 0) {
      throw Error(ErrorKind::resource, "device '" + std::string(kTargetName) + "' is not there: no device was found");
    }
    check(SAMBA_RUNTIME(SetDevice)(0), "choosing device 0");
    check(SAMBA_RUNTIME(StreamCreateWithFlags)(&stream_, SAMBA_RUNTIME(StreamNonBlocking)), "making a stream");
  }
  ~Stream() { (void)SAMBA_RUNTIME(StreamDestroy)(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  SAMBA_RUNTIME(Stream_t) get() const { return stream_; }

 private:
  SAMBA_RUNTIME(Stream_t) stream_ = nullptr;
};

class Context {
 public:
  explicit Context(const ExecutorOptions& options);

  Memory& memory() { return memory_; }
  Workspace& workspace() { return workspace_; }
  std::string device_name() const { return name_; }
  std::string description() const { return description_; }
  int threads() const { return 1; }
  // Threads of a launch over elements: enough to fill the device, each takes several elements.
  Index most_threads() const { return most_threads_; }

  Index multiprocessors() const { return multiprocessors_; }

  SAMBA_RUNTIME(Stream_t) stream() const { return stream_.get(); }
  void launched() { check(SAMBA_RUNTIME(GetLastError)(), kLaunching); }

  // A decode step is kept there and carried out as a whole.
  StepQueue<Context, DeviceGraph>& step() { return step_; }
  std::unique_ptr<DeviceGraph> make_graph(const LaunchList& list) const { return DeviceGraph::make(list, stream()); }
  void launch_one(const LaunchList& list, std::size_t i) const {
    const LaunchExtent& extent = list.extent(i);
    check(SAMBA_RUNTIME(LaunchKernel)(list.kernel(i), dim3(extent.x, extent.y, extent.z), dim3(extent.threads),
                                      list.arguments(i).data(), 0, stream()),
          kLaunching);
  }
  void free_now(void* pointer) const noexcept { (void)SAMBA_RUNTIME(Free)(pointer); }

 private:
  Stream stream_;
  StepQueue<Context, DeviceGraph> step_{*this};
  DeviceMemory memory_{*this};
  Workspace workspace_{memory_};
  std::string name_;
  std::string description_;  // "NVIDIA H200 (sm_90)"
  Index most_threads_ = 0, multiprocessors_ = 0;
};

// Copies and zeros of a step that is kept, as kernels (copies.gpu.h).
void launch_copy(Context& context, void* to, const void* from, std::size_t bytes);
void launch_zero(Context& context, void* to, std::size_t bytes);

inline void* DeviceMemory::allocate(std::size_t bytes) {
  void* pointer = nullptr;
  const Status status = SAMBA_RUNTIME(Malloc)(&pointer, bytes);
  if (status != kSuccess) {
    (void)SAMBA_RUNTIME(GetLastError)();  // a failed allocation is not an error of the next launch
    refuse_device_memory(bytes, SAMBA_RUNTIME(GetErrorString)(status));
  }
  return pointer;
}
inline void DeviceMemory::release(void* pointer) noexcept {
  if (!context_.step().keeps(pointer)) context_.free_now(pointer);
}
inline void DeviceMemory::copy_to_device(void* device, const void* host, std::size_t bytes) {
  context_.step().settle();
  transfer(device, host, bytes, SAMBA_RUNTIME(MemcpyHostToDevice), "copying to the device");
  synchronize();  // the host's bytes may change after the call
}
inline void DeviceMemory::copy_to_host(void* host, const void* device, std::size_t bytes) {
  context_.step().settle();
  transfer(host, device, bytes, SAMBA_RUNTIME(MemcpyDeviceToHost), "copying from the device");
  synchronize();
}
inline void DeviceMemory::copy(void* to, const void* from, std::size_t bytes) {
  if (context_.step().list() != nullptr) return launch_copy(context_, to, from, bytes);
  transfer(to, from, bytes, SAMBA_RUNTIME(MemcpyDeviceToDevice), "copying on the device");
}
inline void DeviceMemory::fill_zero(void* device, std::size_t bytes) {
  if (context_.step().list() != nullptr) return launch_zero(context_, device, bytes);
  if (bytes > 0) check(SAMBA_RUNTIME(MemsetAsync)(device, 0, bytes, context_.stream()), "filling memory");
}
inline void* DeviceMemory::allocate_pinned(std::size_t bytes) {
  void* pointer = nullptr;
#if defined(__HIP__)
  const Status status = hipHostMalloc(&pointer, bytes, hipHostMallocDefault);
#else
  const Status status = cudaHostAlloc(&pointer, bytes, cudaHostAllocDefault);
#endif
  check(status, "taking pinned host memory");
  return pointer;
}
inline void DeviceMemory::release_pinned(void* pointer) noexcept {
#if defined(__HIP__)
  (void)hipHostFree(pointer);
#else
  (void)cudaFreeHost(pointer);
#endif
}
inline void DeviceMemory::synchronize() {
  context_.step().settle();
  check(SAMBA_RUNTIME(StreamSynchronize)(context_.stream()), "waiting for the device");
}
inline void DeviceMemory::transfer(void* to, const void* from, std::size_t bytes, SAMBA_RUNTIME(MemcpyKind) kind,
                                   const char* what) {
  if (bytes > 0) check(SAMBA_RUNTIME(MemcpyAsync)(to, from, bytes, kind, context_.stream()), what);
}

}  // namespace samba::SAMBA_GPU
