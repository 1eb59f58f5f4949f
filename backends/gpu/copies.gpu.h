// Copies and zeros on the device as kernels: a step that is kept holds nothing but kernels.
#pragma once

#include "samba/backends/gpu/platform.h"

namespace samba::SAMBA_GPU {

namespace {

template <class T>
struct CopyRun {
  const T* from;
  T* to;
  SAMBA_DEVICE void operator()(Index i) const { to[i] = from[i]; }
};

template <class T>
struct ZeroRun {
  T* to;
  SAMBA_DEVICE void operator()(Index i) const { to[i] = 0; }
};

bool is_whole(std::size_t bytes, const void* a, const void* b) {
  return (bytes | reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b)) % sizeof(std::uint32_t) ==
         0;
}

}  // namespace

void launch_copy(Context& context, void* to, const void* from, std::size_t bytes) {
  const auto count = static_cast<Index>(bytes);
  if (!is_whole(bytes, to, from)) {
    return for_each(context, count,
                    CopyRun<std::uint8_t>{static_cast<const std::uint8_t*>(from), static_cast<std::uint8_t*>(to)});
  }
  for_each(context, count / 4,
           CopyRun<std::uint32_t>{static_cast<const std::uint32_t*>(from), static_cast<std::uint32_t*>(to)});
}

void launch_zero(Context& context, void* to, std::size_t bytes) {
  const auto count = static_cast<Index>(bytes);
  if (!is_whole(bytes, to, to)) return for_each(context, count, ZeroRun<std::uint8_t>{static_cast<std::uint8_t*>(to)});
  for_each(context, count / 4, ZeroRun<std::uint32_t>{static_cast<std::uint32_t*>(to)});
}

}  // namespace samba::SAMBA_GPU
