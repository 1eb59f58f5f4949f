#include "samba/core/sha256.h"

#include <openssl/evp.h>

#include "samba/core/error.h"

namespace samba {

struct Sha256::Impl {
  Impl() : context(EVP_MD_CTX_new()) {
    if (context == nullptr) throw Error(ErrorKind::resource, "no memory for a SHA-256");
    start();
  }
  ~Impl() { EVP_MD_CTX_free(context); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void start() { check(EVP_DigestInit_ex(context, EVP_sha256(), nullptr)); }
  static void check(int result) {
    if (result != 1) throw Error(ErrorKind::resource, "no SHA-256 can be computed: memory is out, or libcrypto does not offer it");
  }

  EVP_MD_CTX* context;
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(const void* data, std::size_t bytes) { Impl::check(EVP_DigestUpdate(impl_->context, data, bytes)); }

Sha256Digest Sha256::finish() {
  Sha256Digest digest{};
  unsigned int length = 0;
  Impl::check(EVP_DigestFinal_ex(impl_->context, digest.data(), &length));
  impl_->start();
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
