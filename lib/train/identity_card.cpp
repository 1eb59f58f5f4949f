#include "samba/train/identity_card.h"

#include <cstdio>

#include "samba/core/sha256.h"
#include "samba/numerics/float32.h"

namespace samba {

namespace {

constexpr std::size_t kDigits = 32;

std::string bits(float value) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", to_bits(value));
  return text;
}

}  // namespace

std::string first_card(const std::string& parameters_sha256) {
  return sha256_hex("samba.card.v1 " + parameters_sha256).substr(0, kDigits);
}

std::string next_card(const std::string& card, const StepMetrics& metrics) {
  const std::string norm = metrics.total_norm ? bits(*metrics.total_norm) : "none";
  return sha256_hex(card + " " + std::to_string(metrics.step) + " " + bits(metrics.loss) + " " + bits(metrics.lr) +
                    " " + norm)
      .substr(0, kDigits);
}

}  // namespace samba
