// Faults of the file system on demand, for any number of threads. Included by one source file of a test program: its
// definitions take the place of the C library's write, pwrite, read, fsync, close and rename.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>

namespace samba::faults {

// `failing` counts down to the faulty call: 1 is the next one, 0 is none. `calls` counts them since reset().
struct Call {
  std::atomic<int> failing = 0;
  std::atomic<int> calls = 0;
};
inline Call write, pwrite, read, fsync, close, rename;
inline std::atomic<int> error = 0;               // the errno of the failing call
inline std::atomic<std::size_t> most_bytes = 0;  // a write moves at most this many bytes; 0: no limit

inline void reset() {
  for (Call* call : {&write, &pwrite, &read, &fsync, &close, &rename}) call->failing = call->calls = 0;
  error = 0;
  most_bytes = 0;
}

inline bool fails(Call& call) {
  ++call.calls;
  int left = call.failing;
  while (left > 0 && !call.failing.compare_exchange_weak(left, left - 1)) {
  }
  if (left != 1) return false;
  errno = error;
  return true;
}

}  // namespace samba::faults

extern "C" {

ssize_t write(int descriptor, const void* data, size_t bytes) {
  if (samba::faults::fails(samba::faults::write)) return -1;
  if (samba::faults::most_bytes > 0) bytes = std::min<std::size_t>(bytes, samba::faults::most_bytes);
  return ::syscall(SYS_write, descriptor, data, bytes);
}

ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t at) {
  if (samba::faults::fails(samba::faults::pwrite)) return -1;
  return ::syscall(SYS_pwrite64, descriptor, data, bytes, at);
}

ssize_t read(int descriptor, void* data, size_t bytes) {
  if (samba::faults::fails(samba::faults::read)) return -1;
  return ::syscall(SYS_read, descriptor, data, bytes);
}

int fsync(int descriptor) {
  if (samba::faults::fails(samba::faults::fsync)) return -1;
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

// The descriptor is gone all the same, as on Linux.
int close(int descriptor) {
  const bool fails = samba::faults::fails(samba::faults::close);
  const auto result = static_cast<int>(::syscall(SYS_close, descriptor));
  if (fails) errno = samba::faults::error;
  return fails ? -1 : result;
}

int rename(const char* from, const char* to) noexcept {
  if (samba::faults::fails(samba::faults::rename)) return -1;
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

}  // extern "C"
