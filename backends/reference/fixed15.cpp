#include "samba/backends/reference/fixed15.h"

#include <algorithm>
#include <vector>

#include "samba/numerics/fixed15.h"

namespace samba::reference {

namespace {

class QuantizedWeight final : public PreparedWeight {
 public:
  QuantizedWeight(Index n, Index k)
      : n_(n), k_(k), codes_(static_cast<std::size_t>(n * k)), exponents_(static_cast<std::size_t>(n)) {}
  Index rows() const override { return n_; }
  Index columns() const override { return k_; }
  WeightFormat format() const override { return WeightFormat::float32; }
  std::size_t byte_size() const override { return 2 * codes_.size() + 4 * exponents_.size(); }
  std::int16_t* codes() { return codes_.data(); }
  std::int32_t* exponents() { return exponents_.data(); }
  const std::int16_t* row(Index j) const { return codes_.data() + j * k_; }
  std::int32_t exponent(Index j) const { return exponents_[static_cast<std::size_t>(j)]; }

 private:
  Index n_, k_;
  std::vector<std::int16_t> codes_;
  std::vector<std::int32_t> exponents_;
};

}  // namespace

std::int64_t fixed15_dot(Index k, const std::int16_t* a, const std::int16_t* b) {
  std::int64_t sum = 0;
  for (Index p = 0; p < k; ++p) sum += static_cast<std::int32_t>(a[p]) * static_cast<std::int32_t>(b[p]);
  return sum;
}

std::int32_t quantize_row(Index k, const float* x, std::int16_t* codes) {
  std::uint32_t largest = 0;
  for (Index p = 0; p < k; ++p) largest = std::max(largest, fixed15_magnitude(x[p]));
  const std::int32_t exponent = fixed15_exponent(largest);
  const float inverse = power_of_two(-exponent);
  for (Index p = 0; p < k; ++p) codes[p] = fixed15_code(x[p], inverse);
  return exponent;
}

void Fixed15Reference::quantize(Index rows, Index k, const float* x, std::int16_t* codes, std::int32_t* exponents) {
  for (Index i = 0; i < rows; ++i) exponents[i] = quantize_row(k, x + i * k, codes + i * k);
}

std::unique_ptr<PreparedWeight> Fixed15Reference::prepare(Index n, Index k, const float* weight) {
  auto prepared = std::make_unique<QuantizedWeight>(n, k);
  refresh(*prepared, weight);
  return prepared;
}

void Fixed15Reference::refresh(PreparedWeight& prepared, const float* weight) {
  auto& quantized = static_cast<QuantizedWeight&>(prepared);
  quantize(quantized.rows(), quantized.columns(), weight, quantized.codes(), quantized.exponents());
}

void Fixed15Reference::linear(const PreparedWeight& weight, Index m, const float* x, float* y) {
  const auto& quantized = static_cast<const QuantizedWeight&>(weight);
  const Index n = quantized.rows(), k = quantized.columns();
  std::vector<std::int16_t> codes(static_cast<std::size_t>(k));
  for (Index i = 0; i < m; ++i) {
    const std::int32_t exponent = quantize_row(k, x + i * k, codes.data());
    for (Index j = 0; j < n; ++j) {
      y[i * n + j] = fixed15_cell(fixed15_dot(k, codes.data(), quantized.row(j)), exponent, quantized.exponent(j));
    }
  }
}

}  // namespace samba::reference
