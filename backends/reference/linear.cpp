#include "samba/backends/reference/linear.h"

#include <algorithm>
#include <vector>

#include "samba/backends/reference/clones.h"
#include "samba/numerics/fold.h"

namespace samba::reference {

namespace {

constexpr Index kTile = 16;  // cells computed side by side, so that a compiler can use vectors

// c[i, j .. j + columns) = the fold over p of a(i, p) * b[p, j ..], b row-major with rows of n.
struct Product {
  Index m, n, k;
  const float* a;
  Index a_row, a_term;  // floats from a(i, p) to a(i + 1, p) and to a(i, p + 1)
  const float* b;
  float* c;
};

inline void leaf_partials(const Product& g, Index i, Index j, Index columns, Index first, Index end, float* acc) {
  for (Index q = 0; q < columns; ++q) acc[q] = 0.0F;
  for (Index p = first; p < end; ++p) {
    const float a = flush(g.a[i * g.a_row + p * g.a_term]);
    const float* b = g.b + p * g.n + j;
    for (Index q = 0; q < columns; ++q) acc[q] = flush(fma(a, flush(b[q]), acc[q]));
  }
}

SAMBA_FMA_CLONES void multiply(const Product& g) {
  const Index leaf = leaf_length(g.k);
  for (Index i = 0; i < g.m; ++i) {
    for (Index j = 0; j < g.n; j += kTile) {
      const Index columns = std::min(kTile, g.n - j);
      TreeFold trees[kTile];
      for (Index first = 0; first < g.k; first += leaf) {
        const Index end = std::min(g.k, first + leaf);
        float acc[kTile];
        if (columns == kTile) {
          leaf_partials(g, i, j, kTile, first, end, acc);
        } else {
          leaf_partials(g, i, j, columns, first, end, acc);
        }
        for (Index q = 0; q < columns; ++q) trees[q].push(acc[q]);
      }
      for (Index q = 0; q < columns; ++q) g.c[i * g.n + j + q] = trees[q].finish();
    }
  }
}

// to[k, n] = from[n, k]
void transpose(Index n, Index k, const float* from, float* to) {
  for (Index i = 0; i < n; ++i) {
    for (Index p = 0; p < k; ++p) to[p * n + i] = from[i * k + p];
  }
}

class TransposedWeight final : public PreparedWeight {
 public:
  TransposedWeight(Index n, Index k, const float* weight) : n_(n), k_(k), values_(static_cast<std::size_t>(n * k)) {
    refresh(weight);
  }
  Index rows() const override { return n_; }
  Index columns() const override { return k_; }
  WeightFormat format() const override { return WeightFormat::float32; }
  std::size_t byte_size() const override { return values_.size() * sizeof(float); }
  void refresh(const float* weight) { transpose(n_, k_, weight, values_.data()); }
  const float* values() const { return values_.data(); }  // [k, n]

 private:
  Index n_, k_;
  std::vector<float> values_;
};

class PackedCopy final : public PreparedWeight {
 public:
  explicit PackedCopy(const ConstPackedWeight& weight) : weight_(weight) {}
  Index rows() const override { return weight_.rows(); }
  Index columns() const override { return weight_.columns(); }
  WeightFormat format() const override { return weight_.format(); }
  std::size_t byte_size() const override { return weight_.byte_size(); }
  bool reads_blocks() const override { return weight_.view().blocks != nullptr; }
  void refresh(const ConstPackedWeight& weight) { weight_ = PackedWeight(weight); }
  ConstPackedWeight view() const { return weight_.view(); }

 private:
  PackedWeight weight_;
};

SAMBA_FMA_CLONES float dot_product(Index n, const float* a, const float* b) {
  return dot(
      n, [a](Index i) { return a[i]; }, [b](Index i) { return b[i]; });
}

}  // namespace

void LinearReference::gemm(Layout layout, Index m, Index n, Index k, const float* a, const float* b, float* c) {
  switch (layout) {
    case Layout::nn:
      return multiply({m, n, k, a, k, 1, b, c});
    case Layout::tn:
      return multiply({m, n, k, a, 1, m, b, c});
    case Layout::nt: {
      const TransposedWeight columns(n, k, b);
      return multiply({m, n, k, a, k, 1, columns.values(), c});
    }
  }
}

std::unique_ptr<PreparedWeight> LinearReference::prepare(Index n, Index k, const float* weight) {
  return std::make_unique<TransposedWeight>(n, k, weight);
}

std::unique_ptr<PreparedWeight> LinearReference::prepare(const ConstPackedWeight& weight) {
  return std::make_unique<PackedCopy>(weight);
}

void LinearReference::refresh(PreparedWeight& prepared, const WeightView& weight) {
  if (weight.is_packed()) {
    static_cast<PackedCopy&>(prepared).refresh(weight.packed());
  } else {
    static_cast<TransposedWeight&>(prepared).refresh(weight.values());
  }
}

void LinearReference::linear(const PreparedWeight& weight, Index m, const float* x, float* y) {
  const Index n = weight.rows(), k = weight.columns();
  if (weight.format() != WeightFormat::float32) {
    std::vector<float> values(static_cast<std::size_t>(n * k));
    expand(static_cast<const PackedCopy&>(weight).view(), values.data());
    return gemm(Layout::nt, m, n, k, x, values.data(), y);
  }
  multiply({m, n, k, x, k, 1, static_cast<const TransposedWeight&>(weight).values(), y});
}

std::size_t LinearReference::prepared_bytes(WeightFormat format, Index n, Index k) const {
  return stored_bytes(format, n, k);
}

void LinearReference::gather_rows(const PreparedWeight& weight, Index count, const std::int32_t* rows, float* values) {
  const Index n = weight.rows(), k = weight.columns();
  for (Index i = 0; i < count; ++i, values += k) {
    if (weight.format() == WeightFormat::float32) {
      const float* column = static_cast<const TransposedWeight&>(weight).values() + rows[i];
      for (Index p = 0; p < k; ++p) values[p] = flush(column[p * n]);
    } else {
      const ConstPackedWeight packed = static_cast<const PackedCopy&>(weight).view();
      expand(packed_rows(packed, rows[i], rows[i] + 1), values);
      for (Index p = 0; p < k; ++p) values[p] = flush(values[p]);
    }
  }
}

Weight LinearReference::stored(const PreparedWeight& weight) {
  if (weight.format() != WeightFormat::float32) {
    return PackedWeight(static_cast<const PackedCopy&>(weight).view());
  }
  Array values = Array::zeros({weight.rows(), weight.columns()});
  transpose(weight.columns(), weight.rows(), static_cast<const TransposedWeight&>(weight).values(),
            values.floats().data());
  return values;
}

void LinearReference::expand(const ConstPackedWeight& packed, float* values) {
  samba::expand(packed, {values, static_cast<std::size_t>(packed.rows * packed.columns)});
}

void LinearReference::add_bias(Index m, Index n, const float* bias, float* y) {
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < n; ++j) y[i * n + j] = add(y[i * n + j], bias[j]);
  }
}

void LinearReference::column_sum(Index rows, Index width, const float* v, float* out) {
  const std::vector<float> ones(static_cast<std::size_t>(rows), 1.0F);
  multiply({1, width, rows, ones.data(), rows, 1, v, out});
}

float LinearReference::dot(Index n, const float* a, const float* b) { return dot_product(n, a, b); }

float LinearReference::sum(Index n, const float* x) {
  return samba::dot(
      n, [x](Index i) { return x[i]; }, [](Index) { return 1.0F; });
}

}  // namespace samba::reference
