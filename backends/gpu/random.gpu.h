// Draws from the position-keyed stream, one element each.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/numerics/philox.h"

namespace samba::SAMBA_GPU {

namespace {

// Draws by a function of philox.h of (seed, stream, element, two parameters).
template <auto kFunction>
struct Draw {
  std::uint64_t seed;
  std::uint32_t stream;
  float first, second;
  float* out;
  SAMBA_DEVICE void operator()(Index i) const {
    out[i] = kFunction(seed, stream, static_cast<std::uint64_t>(i), first, second);
  }
};

struct Dropout {
  DropoutKey key;
  const float *x, *residual;  // residual null: the dropped value alone
  float* y;
  SAMBA_DEVICE void operator()(Index i) const {
    const float coin = stream_coin(key.seed, key.stream, key.offset + static_cast<std::uint64_t>(i));
    const float dropped = coin >= key.p ? mul(x[i], key.scale) : 0.0F;
    y[i] = residual != nullptr ? add(residual[i], dropped) : dropped;
  }
};

class RandomGpu final : public RandomKernels {
 public:
  explicit RandomGpu(Context& context) : context_(context) {}

  void uniform(std::uint64_t seed, std::uint32_t stream, Index n, float low, float high, float* out) override {
    for_each(context_, n, Draw<stream_uniform>{seed, stream, low, high - low, out});
  }
  void normal(std::uint64_t seed, std::uint32_t stream, Index n, float mean, float deviation, float* out) override {
    for_each(context_, n, Draw<stream_normal>{seed, stream, mean, deviation, out});
  }
  void dropout(const DropoutKey& key, Index n, const float* x, float* y) override {
    for_each(context_, n, Dropout{key, x, nullptr, y});
  }
  void residual_dropout(const DropoutKey& key, Index n, const float* x, const float* residual, float* y) override {
    for_each(context_, n, Dropout{key, x, residual, y});
  }

 private:
  Context& context_;
};

}  // namespace

std::unique_ptr<RandomKernels> make_random(Context& context) { return std::make_unique<RandomGpu>(context); }

}  // namespace samba::SAMBA_GPU
