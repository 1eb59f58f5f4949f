// Faults of the file system on demand. Included by one source file of a test program: its definitions take the place of
// the C library's write, fsync and rename.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

namespace samba::faults {

// A call number counts down to the faulty call: 1 is the next one, 0 is none.
inline int failing_write = 0;
inline int failing_fsync = 0;
inline int failing_rename = 0;
inline int error = 0;               // the errno of the failing call
inline std::size_t most_bytes = 0;  // a write moves at most this many bytes; 0: no limit
inline int writes = 0, fsyncs = 0;

inline void reset() {
  failing_write = failing_fsync = failing_rename = 0;
  error = 0;
  most_bytes = 0;
  writes = fsyncs = 0;
}

inline bool fails(int& countdown) {
  if (countdown == 0 || --countdown > 0) return false;
  errno = error;
  return true;
}

}  // namespace samba::faults

extern "C" {

ssize_t write(int descriptor, const void* data, size_t bytes) {
  ++samba::faults::writes;
  if (samba::faults::fails(samba::faults::failing_write)) return -1;
  if (samba::faults::most_bytes > 0) bytes = std::min(bytes, samba::faults::most_bytes);
  return ::syscall(SYS_write, descriptor, data, bytes);
}

int fsync(int descriptor) {
  ++samba::faults::fsyncs;
  if (samba::faults::fails(samba::faults::failing_fsync)) return -1;
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

int rename(const char* from, const char* to) noexcept {
  if (samba::faults::fails(samba::faults::failing_rename)) return -1;
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

}  // extern "C"
