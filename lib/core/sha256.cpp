#include "samba/core/sha256.h"

// The functions of SHA-256 alone: those of EVP allocate, and libcrypto 3 does not survive it when that fails.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

namespace samba {

struct Sha256::Impl {
  Impl() { SHA256_Init(&context); }

  SHA256_CTX context{};
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(const void* data, std::size_t bytes) { SHA256_Update(&impl_->context, data, bytes); }

Sha256Digest Sha256::finish() {
  Sha256Digest digest{};
  SHA256_Final(digest.data(), &impl_->context);
  SHA256_Init(&impl_->context);
  return digest;
}

std::string Sha256::finish_hex() { return to_hex(finish()); }

std::string to_hex(std::span<const std::uint8_t> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15U];
  }
  return text;
}

std::string sha256_hex(const void* data, std::size_t bytes) {
  Sha256 hash;
  hash.update(data, bytes);
  return hash.finish_hex();
}

}  // namespace samba
