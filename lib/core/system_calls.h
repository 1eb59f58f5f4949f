// System calls that a signal may interrupt, or that may do a part of their work.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "samba/core/files.h"

namespace samba {

// One read or write call moves at most this much, so that a signal never finds it far from done.
inline constexpr std::size_t kPiece = std::size_t{1} << 24;

// A call that a signal interrupted is made again.
template <class Call>
int again(Call&& call) {
  int result = 0;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

inline int open_again(const Path& path, int flags, unsigned mode = 0) {
  return again([&] { return ::open(path.c_str(), flags | O_CLOEXEC, mode); });
}

// Linux closes a descriptor also when a signal interrupts the call.
inline int close_once(int descriptor) {
  const int result = ::close(descriptor);
  return result != 0 && errno == EINTR ? 0 : result;
}

// Writes all of it; returns 0 or the errno of what failed.
inline int write_all(int descriptor, const char* data, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t wrote = ::write(descriptor, data + done, std::min(bytes - done, kPiece));
    if (wrote < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    if (wrote == 0) return ENOSPC;
    done += static_cast<std::size_t>(wrote);
  }
  return 0;
}

}  // namespace samba
