#include "samba/backends/cpu/linear_blas.h"

#include <algorithm>

namespace samba::cpu {

namespace {

constexpr Index kPart = 256;  // columns of a part in the mode deterministic
constexpr Index kUnit = 64;   // parts of the mode fast are multiples of it

// A copy of the weight as it is stored.
class PlainWeight final : public PreparedWeight {
 public:
  PlainWeight(Memory& memory, Index n, Index k, const float* weight)
      : memory_(memory), n_(n), k_(k), values_(memory, n * k) {
    refresh(weight);
  }
  Index rows() const override { return n_; }
  Index columns() const override { return k_; }
  WeightFormat format() const override { return WeightFormat::float32; }
  std::size_t byte_size() const override { return values_.byte_size(); }
  void refresh(const float* weight) { memory_.copy(values_.data(), weight, values_.byte_size()); }
  const float* values() const { return values_.data(); }

 private:
  Memory& memory_;
  Index n_, k_;
  DeviceArray<float> values_;
};

}  // namespace

template <class Body>
void LinearBlas::in_columns(Index n, Body&& body) {
  blas_.use_one_thread();
  context_.parallel(n, deterministic_ ? kPart : kUnit, [&](Index first, Index end, int) {
    const Index part = deterministic_ ? kPart : end - first;
    for (; first < end; first += part) body(first, std::min(end, first + part));
  });
}

void LinearBlas::gemm(Layout layout, Index m, Index n, Index k, const float* a, const float* b, float* c) {
  const bool transpose_a = layout == Layout::tn, transpose_b = layout == Layout::nt;
  const Index lda = transpose_a ? m : k, ldb = transpose_b ? k : n;
  in_columns(n, [&](Index first, Index end) {
    blas_.sgemm(transpose_a, transpose_b, m, end - first, k, a, lda, b + (transpose_b ? first * k : first), ldb,
                c + first, n);
  });
}

std::unique_ptr<PreparedWeight> LinearBlas::prepare(Index n, Index k, const float* weight) {
  return std::make_unique<PlainWeight>(memory_, n, k, weight);
}

void LinearBlas::refresh(PreparedWeight& prepared, const WeightView& weight) {
  if (weight.is_packed()) return own_.refresh(prepared, weight);
  static_cast<PlainWeight&>(prepared).refresh(weight.values());
}

std::size_t LinearBlas::prepared_bytes(WeightFormat format, Index n, Index k) const {
  if (format != WeightFormat::float32) return own_.prepared_bytes(format, n, k);
  return static_cast<std::size_t>(n * k) * sizeof(float);
}

void LinearBlas::gather_rows(const PreparedWeight& weight, Index count, const std::int32_t* rows, float* values) {
  if (weight.format() != WeightFormat::float32) return own_.gather_rows(weight, count, rows, values);
  const Index k = weight.columns();
  const float* from = static_cast<const PlainWeight&>(weight).values();
  for (Index i = 0; i < count; ++i) std::copy_n(from + rows[i] * k, k, values + i * k);
}

Weight LinearBlas::stored(const PreparedWeight& weight) {
  if (weight.format() != WeightFormat::float32) return own_.stored(weight);
  const float* from = static_cast<const PlainWeight&>(weight).values();
  return Array::from_floats({weight.rows(), weight.columns()},
                            {from, static_cast<std::size_t>(weight.rows() * weight.columns())});
}

void LinearBlas::linear(const PreparedWeight& weight, Index m, const float* x, float* y) {
  if (weight.format() != WeightFormat::float32) return own_.linear(weight, m, x, y);
  const Index n = weight.rows(), k = weight.columns();
  const float* w = static_cast<const PlainWeight&>(weight).values();
  if (m > 1) return gemm(Layout::nt, m, n, k, x, w, y);
  in_columns(n, [&](Index first, Index end) { blas_.sgemv(end - first, k, w + first * k, x, y + first); });
}

}  // namespace samba::cpu
