// Unsigned integers of 768 bits: room for the exact rationals and the fixed-point sines of learning-rate schedules.
// Results that do not fit wrap around; the callers keep below (schedule.cpp says how much each number needs).
#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstdint>

namespace samba {

class WideInteger {
 public:
  static constexpr int kLimbs = 24;

  constexpr WideInteger() = default;
  constexpr explicit WideInteger(std::uint64_t value) {
    limbs_[0] = static_cast<std::uint32_t>(value);
    limbs_[1] = static_cast<std::uint32_t>(value >> 32);
  }

  constexpr int bit_length() const {
    for (int i = kLimbs - 1; i >= 0; --i) {
      if (limb(i) != 0) return 32 * i + 32 - std::countl_zero(limb(i));
    }
    return 0;
  }
  constexpr bool bit(int position) const { return ((limb(position / 32) >> (position % 32)) & 1U) != 0; }
  constexpr std::uint64_t low64() const { return limb(0) | std::uint64_t{limb(1)} << 32; }

  friend constexpr WideInteger operator+(const WideInteger& a, const WideInteger& b) {
    WideInteger sum;
    std::uint64_t carry = 0;
    for (int i = 0; i < kLimbs; ++i) {
      carry += std::uint64_t{a.limb(i)} + b.limb(i);
      sum.set_limb(i, carry);
      carry >>= 32;
    }
    return sum;
  }
  friend constexpr WideInteger operator-(const WideInteger& a, const WideInteger& b) {
    WideInteger difference;
    std::uint64_t borrow = 0;
    for (int i = 0; i < kLimbs; ++i) {
      const std::uint64_t value = std::uint64_t{a.limb(i)} - b.limb(i) - borrow;
      difference.set_limb(i, value);
      borrow = value >> 63;
    }
    return difference;
  }
  friend constexpr WideInteger operator*(const WideInteger& a, const WideInteger& b) {
    WideInteger product;
    for (int i = 0; i < kLimbs; ++i) {
      std::uint64_t carry = 0;
      for (int j = 0; i + j < kLimbs && (a.limb(i) != 0); ++j) {
        carry += std::uint64_t{a.limb(i)} * b.limb(j) + product.limb(i + j);
        product.set_limb(i + j, carry);
        carry >>= 32;
      }
    }
    return product;
  }
  constexpr WideInteger shifted_left(int bits) const {
    WideInteger result;
    for (int i = kLimbs - 1; i >= bits / 32; --i) {
      const int from = i - bits / 32;
      const std::uint64_t low = from > 0 ? limb(from - 1) : 0;
      result.set_limb(i, ((std::uint64_t{limb(from)} << 32 | low) << (bits % 32)) >> 32);
    }
    return result;
  }
  constexpr WideInteger shifted_right(int bits) const {
    WideInteger result;
    for (int i = 0; i + bits / 32 < kLimbs; ++i) {
      const int from = i + bits / 32;
      const std::uint64_t high = from + 1 < kLimbs ? limb(from + 1) : 0;
      result.set_limb(i, (high << 32 | limb(from)) >> (bits % 32));
    }
    return result;
  }
  // The quotient; `remainder` receives the rest. divisor >= 1.
  constexpr WideInteger divided_by(std::uint64_t divisor, std::uint64_t& remainder) const {
    WideInteger quotient;
    std::uint64_t rest = 0;
    for (int position = bit_length() - 1; position >= 0; --position) {
      const bool carry = (rest >> 63) != 0;
      rest = rest << 1 | static_cast<std::uint64_t>(bit(position));
      if (carry || rest >= divisor) {
        rest -= divisor;
        quotient.limbs_[static_cast<std::size_t>(position / 32)] |= 1U << (position % 32);
      }
    }
    remainder = rest;
    return quotient;
  }

  constexpr bool operator==(const WideInteger&) const = default;

 private:
  constexpr std::uint32_t limb(int index) const { return limbs_[static_cast<std::size_t>(index)]; }
  constexpr void set_limb(int index, std::uint64_t value) {
    limbs_[static_cast<std::size_t>(index)] = static_cast<std::uint32_t>(value);
  }

  std::array<std::uint32_t, kLimbs> limbs_{};  // little-endian
};

}  // namespace samba
