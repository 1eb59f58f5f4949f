// Denormals-are-zero for the length of a scope (x86: MXCSR bit 6 set, flush-to-zero clear; spec 10 section 11). Exact,
// as long as whatever leaves the scope is flushed by bits. Every thread that runs a kernel opens one of its own.
#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#define SAMBA_HAS_DAZ 1
#include <xmmintrin.h>
#else
#define SAMBA_HAS_DAZ 0
#endif

namespace samba::cpu {

class DazScope {
 public:
#if SAMBA_HAS_DAZ
  DazScope() : saved_(_mm_getcsr()) { _mm_setcsr((saved_ | kDaz) & ~kFtz); }
  ~DazScope() { _mm_setcsr(saved_); }
#else
  DazScope() {}  // not trivial, so that no object of it counts as unused
#endif
  DazScope(const DazScope&) = delete;
  DazScope& operator=(const DazScope&) = delete;

#if SAMBA_HAS_DAZ
 private:
  static constexpr unsigned kDaz = 0x0040;
  static constexpr unsigned kFtz = 0x8000;
  unsigned saved_;
#endif
};

}  // namespace samba::cpu
