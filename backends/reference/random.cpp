#include "samba/backends/reference/random.h"

#include "samba/backends/reference/clones.h"
#include "samba/numerics/philox.h"

namespace samba::reference {

namespace {

SAMBA_FMA_CLONES void fill_uniform(std::uint64_t seed, std::uint32_t stream, Index n, float low, float span,
                                   float* out) {
  for (Index i = 0; i < n; ++i) out[i] = stream_uniform(seed, stream, static_cast<std::uint64_t>(i), low, span);
}

SAMBA_FMA_CLONES void fill_normal(std::uint64_t seed, std::uint32_t stream, Index n, float mean, float deviation,
                                  float* out) {
  for (Index i = 0; i < n; ++i) out[i] = stream_normal(seed, stream, static_cast<std::uint64_t>(i), mean, deviation);
}

float dropped(const DropoutKey& key, Index i, float value) {
  const float coin = stream_coin(key.seed, key.stream, key.offset + static_cast<std::uint64_t>(i));
  return coin >= key.p ? mul(value, key.scale) : 0.0F;
}

}  // namespace

void RandomReference::uniform(std::uint64_t seed, std::uint32_t stream, Index n, float low, float high, float* out) {
  fill_uniform(seed, stream, n, low, high - low, out);
}

void RandomReference::normal(std::uint64_t seed, std::uint32_t stream, Index n, float mean, float deviation,
                             float* out) {
  fill_normal(seed, stream, n, mean, deviation, out);
}

void RandomReference::dropout(const DropoutKey& key, Index n, const float* x, float* y) {
  for (Index i = 0; i < n; ++i) y[i] = dropped(key, i, x[i]);
}

void RandomReference::residual_dropout(const DropoutKey& key, Index n, const float* x, const float* residual,
                                       float* y) {
  for (Index i = 0; i < n; ++i) y[i] = add(residual[i], dropped(key, i, x[i]));
}

}  // namespace samba::reference
