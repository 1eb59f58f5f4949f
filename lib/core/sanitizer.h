// Tells the address sanitizer about memory that is cut into pieces by samba itself. Nothing in other builds.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define SAMBA_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SAMBA_ADDRESS_SANITIZER
#endif
#endif

#if defined(SAMBA_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#endif

namespace samba {

#if defined(SAMBA_ADDRESS_SANITIZER)
inline constexpr bool kAddressSanitizer = true;
inline void forbid_access(const void* from, std::size_t bytes) { __asan_poison_memory_region(from, bytes); }
inline void allow_access(const void* from, std::size_t bytes) { __asan_unpoison_memory_region(from, bytes); }
#else
inline constexpr bool kAddressSanitizer = false;
inline void forbid_access(const void*, std::size_t) {}
inline void allow_access(const void*, std::size_t) {}
#endif

}  // namespace samba
