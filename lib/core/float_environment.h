// The floating-point control word that the arithmetic needs: round to nearest even, nothing flushed, no traps (spec 10
// section 1). A process that loads samba may have another one; a thread starts with that of the thread that made it.
//
// Every public call that computes opens a FloatScope: it puts the control word right and gives the caller's back at its
// end. Threads of samba's own put theirs right once, when they start.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace samba {

#if defined(__x86_64__)
inline constexpr std::uint32_t kFloatStatusBits = 0x003F;   // sticky flags: no business of ours
inline constexpr std::uint32_t kFloatControlWord = 0x1F80;  // all exceptions masked
inline std::uint32_t float_control_word() { return _mm_getcsr(); }
inline void set_float_control_word(std::uint32_t word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
inline constexpr std::uint32_t kFloatStatusBits = 0;
inline constexpr std::uint32_t kFloatControlWord = 0;
inline std::uint32_t float_control_word() {
  std::uint64_t word = 0;
  asm volatile("mrs %0, fpcr" : "=r"(word));
  return static_cast<std::uint32_t>(word);
}
inline void set_float_control_word(std::uint32_t word) { asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{word})); }
#else
inline constexpr std::uint32_t kFloatStatusBits = 0;
inline constexpr std::uint32_t kFloatControlWord = 0;
inline std::uint32_t float_control_word() { return 0; }
inline void set_float_control_word(std::uint32_t) {}
#endif

inline bool float_control_is_right() { return (float_control_word() & ~kFloatStatusBits) == kFloatControlWord; }

class FloatScope {
 public:
  FloatScope() : saved_(float_control_word()), wrong_((saved_ & ~kFloatStatusBits) != kFloatControlWord) {
    if (wrong_) set_float_control_word(kFloatControlWord);
  }
  ~FloatScope() {
    if (wrong_) set_float_control_word(saved_);
  }
  FloatScope(const FloatScope&) = delete;
  FloatScope& operator=(const FloatScope&) = delete;

 private:
  std::uint32_t saved_;
  bool wrong_;
};

}  // namespace samba
