// SHA-256, in pieces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace samba {

using Sha256Digest = std::array<std::uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(const void* data, std::size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }

  // The digest of everything so far; afterwards the object starts anew.
  Sha256Digest finish();
  std::string finish_hex();  // 64 lower-case hex digits

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string to_hex(std::span<const std::uint8_t> bytes);  // lower case
std::string sha256_hex(const void* data, std::size_t bytes);
inline std::string sha256_hex(std::string_view text) { return sha256_hex(text.data(), text.size()); }

}  // namespace samba
