// What all kernels of one executor of a device share: its stream, its memory, its scratch. For CUDA and HIP, whose
// runtimes have the same functions under two prefixes.
#pragma once

#include <string>

#include "samba/backends/gpu/device_errors.h"
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

class DeviceMemory final : public Memory, public PinnedMemory {
 public:
  explicit DeviceMemory(SAMBA_RUNTIME(Stream_t) stream) : stream_(stream) {}

  void* allocate(std::size_t bytes) override {
    void* pointer = nullptr;
    const Status status = SAMBA_RUNTIME(Malloc)(&pointer, bytes);
    if (status != kSuccess) {
      (void)SAMBA_RUNTIME(GetLastError)();  // a failed allocation is not an error of the next launch
      refuse_device_memory(bytes, SAMBA_RUNTIME(GetErrorString)(status));
    }
    return pointer;
  }
  void release(void* pointer) noexcept override { (void)SAMBA_RUNTIME(Free)(pointer); }
  void copy_to_device(void* device, const void* host, std::size_t bytes) override {
    transfer(device, host, bytes, SAMBA_RUNTIME(MemcpyHostToDevice), "copying to the device");
    synchronize();  // the host's bytes may change after the call
  }
  void copy_to_host(void* host, const void* device, std::size_t bytes) override {
    transfer(host, device, bytes, SAMBA_RUNTIME(MemcpyDeviceToHost), "copying from the device");
    synchronize();
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    transfer(to, from, bytes, SAMBA_RUNTIME(MemcpyDeviceToDevice), "copying on the device");
  }
  void fill_zero(void* device, std::size_t bytes) override {
    if (bytes > 0) check(SAMBA_RUNTIME(MemsetAsync)(device, 0, bytes, stream_), "filling memory");
  }
  void* allocate_pinned(std::size_t bytes) override {
    void* pointer = nullptr;
#if defined(__HIP__)
    const Status status = hipHostMalloc(&pointer, bytes, hipHostMallocDefault);
#else
    const Status status = cudaHostAlloc(&pointer, bytes, cudaHostAllocDefault);
#endif
    check(status, "taking pinned host memory");
    return pointer;
  }
  void release_pinned(void* pointer) noexcept override {
#if defined(__HIP__)
    (void)hipHostFree(pointer);
#else
    (void)cudaFreeHost(pointer);
#endif
  }
  void synchronize() override { check(SAMBA_RUNTIME(StreamSynchronize)(stream_), "waiting for the device"); }

 private:
  void transfer(void* to, const void* from, std::size_t bytes, SAMBA_RUNTIME(MemcpyKind) kind, const char* what) {
    if (bytes > 0) check(SAMBA_RUNTIME(MemcpyAsync)(to, from, bytes, kind, stream_), what);
  }
  SAMBA_RUNTIME(Stream_t) stream_;
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

 private:
  Stream stream_;
  DeviceMemory memory_{stream_.get()};
  Workspace workspace_{memory_};
  std::string name_;
  std::string description_;  // "NVIDIA H200 (sm_90)"
  Index most_threads_ = 0, multiprocessors_ = 0;
};

}  // namespace samba::SAMBA_GPU
