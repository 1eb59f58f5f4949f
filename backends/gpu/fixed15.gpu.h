// The products of numeric_profile fixed15_v1 (spec 20 section 10): the sum is exact, so that nothing of its order
// shows.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/numerics/fixed15.h"

namespace samba::SAMBA_GPU {

namespace {

struct QuantizeRow {
  Index k;
  const float* x;
  std::int16_t* codes;
  std::int32_t* exponents;
  SAMBA_DEVICE void operator()(Index i) const {
    std::uint32_t largest = 0;
    for (Index p = 0; p < k; ++p) {
      const std::uint32_t magnitude = fixed15_magnitude(x[i * k + p]);
      largest = magnitude > largest ? magnitude : largest;
    }
    const std::int32_t exponent = fixed15_exponent(largest);
    const float inverse = power_of_two(-exponent);
    for (Index p = 0; p < k; ++p) codes[i * k + p] = fixed15_code(x[i * k + p], inverse);
    exponents[i] = exponent;
  }
};

struct Fixed15Product {
  Index n, k;
  const std::int16_t* x;
  const std::int32_t* x_exponents;
  const std::int16_t* w;
  const std::int32_t* w_exponents;
  float* y;
  SAMBA_DEVICE void operator()(Index index) const {
    const Index i = index / n, j = index % n;
    std::int64_t sum = 0;
    for (Index p = 0; p < k; ++p) {
      sum += static_cast<std::int32_t>(x[i * k + p]) * static_cast<std::int32_t>(w[j * k + p]);
    }
    y[index] = fixed15_cell(sum, x_exponents[i], w_exponents[j]);
  }
};

class QuantizedWeight final : public PreparedWeight {
 public:
  QuantizedWeight(Context& context, Index n, Index k)
      : n_(n), k_(k), codes_(context.memory(), n * k), exponents_(context.memory(), n) {}
  Index rows() const override { return n_; }
  Index columns() const override { return k_; }
  WeightFormat format() const override { return WeightFormat::float32; }
  std::size_t byte_size() const override { return codes_.byte_size() + exponents_.byte_size(); }
  std::int16_t* codes() { return codes_.data(); }
  std::int32_t* exponents() { return exponents_.data(); }
  const std::int16_t* codes() const { return codes_.data(); }
  const std::int32_t* exponents() const { return exponents_.data(); }

 private:
  Index n_, k_;
  DeviceArray<std::int16_t> codes_;
  DeviceArray<std::int32_t> exponents_;
};

class Fixed15Gpu final : public Fixed15Kernels {
 public:
  explicit Fixed15Gpu(Context& context) : context_(context) {}

  void quantize(Index rows, Index k, const float* x, std::int16_t* codes, std::int32_t* exponents) override {
    launch_quantize(context_, rows, k, x, codes, exponents);
  }
  std::unique_ptr<PreparedWeight> prepare(Index n, Index k, const float* weight) override {
    auto prepared = std::make_unique<QuantizedWeight>(context_, n, k);
    refresh(*prepared, weight);
    return prepared;
  }
  void refresh(PreparedWeight& prepared, const float* weight) override {
    auto& quantized = static_cast<QuantizedWeight&>(prepared);
    launch_quantize(context_, quantized.rows(), quantized.columns(), weight, quantized.codes(), quantized.exponents());
  }
  void linear(const PreparedWeight& weight, Index m, const float* x, float* y) override {
    const auto& quantized = static_cast<const QuantizedWeight&>(weight);
    const Index n = quantized.rows(), k = quantized.columns();
    const Workspace::Scope scope(context_.workspace());
    std::int16_t* codes = context_.workspace().codes(m * k);
    std::int32_t* exponents = context_.workspace().ints(m);
    launch_quantize(context_, m, k, x, codes, exponents);
    for_each(context_, m * n, Fixed15Product{n, k, codes, exponents, quantized.codes(), quantized.exponents(), y});
  }

 private:
  Context& context_;
};

}  // namespace

void launch_quantize(Context& context, Index rows, Index k, const float* x, std::int16_t* codes,
                     std::int32_t* exponents) {
  for_each(context, rows, QuantizeRow{k, x, codes, exponents});
}

std::unique_ptr<Fixed15Kernels> make_fixed15(Context& context) { return std::make_unique<Fixed15Gpu>(context); }

}  // namespace samba::SAMBA_GPU
