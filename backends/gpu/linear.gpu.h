// Linear layers. A prepared float32 weight [n, k] is its transpose [k, n]: neighbouring threads take neighbouring
// outputs and read neighbouring floats.
#pragma once

#include "samba/backends/gpu/blas.gpu.h"
#include "samba/backends/gpu/folds.gpu.h"
#include "samba/backends/gpu/gemm.gpu.h"
#include "samba/backends/gpu/rows.gpu.h"
#include "samba/kernels/weight.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr int kSquare = 32;
inline constexpr int kSquareRows = 8;  // of the threads: each copies kSquare / kSquareRows elements

// to[k, n] = from[n, k]
SAMBA_KERNEL(kSquare* kSquareRows) transpose(Index n, Index k, const float* from, float* to) {
  constexpr int kPitch = kSquare + 1;
  SAMBA_SHARED(float, tile, kSquare* kPitch);
  const int x = static_cast<int>(thread_index()) % kSquare, y = static_cast<int>(thread_index()) / kSquare;
  const Index tiles = (k + kSquare - 1) / kSquare;
  const Index row = static_cast<Index>(block_x()) / tiles * kSquare;
  const Index column = static_cast<Index>(block_x()) % tiles * kSquare;
  for (int r = y; r < kSquare; r += kSquareRows) {
    if (row + r < n && column + x < k) tile[r * kPitch + x] = from[(row + r) * k + column + x];
  }
  barrier();
  for (int r = y; r < kSquare; r += kSquareRows) {
    if (column + r < k && row + x < n) to[(column + r) * n + row + x] = tile[x * kPitch + r];
  }
}

void launch_transpose(Context& context, Index n, Index k, const float* from, float* to) {
  const Index squares = (n + kSquare - 1) / kSquare * ((k + kSquare - 1) / kSquare);
  launch(context, Grid{static_cast<unsigned>(squares)}, kSquare * kSquareRows, transpose, n, k, from, to);
}

class TransposedWeight final : public PreparedWeight {
 public:
  TransposedWeight(Context& context, Index n, Index k) : n_(n), k_(k), values_(context.memory(), n * k) {}
  Index rows() const override { return n_; }
  Index columns() const override { return k_; }
  WeightFormat format() const override { return WeightFormat::float32; }
  std::size_t byte_size() const override { return values_.byte_size(); }

  void fill(Context& context, const float* weight) { launch_transpose(context, n_, k_, weight, values_.data()); }
  const float* values() const { return values_.data(); }  // [k, n]

 private:
  Index n_, k_;
  DeviceArray<float> values_;
};

struct AddBias {
  Index n;
  const float* bias;
  float* y;
  SAMBA_DEVICE void operator()(Index i) const { y[i] = add(y[i], bias[i % n]); }
};

// values[i, p] = F(w[rows[i], p]) of a transposed weight [k, n]
struct GatherColumns {
  Index n, k;
  const std::int32_t* rows;
  const float* weight;
  float* values;
  SAMBA_DEVICE void operator()(Index i) const { values[i] = flush(weight[i % k * n + rows[i / k]]); }
};

class LinearGpu final : public LinearKernels, public LinearGroups {
 public:
  LinearGpu(Context& context, const Blas* blas) : context_(context), blas_(blas) {}

  void gemm(Layout layout, Index m, Index n, Index k, const float* a, const float* b, float* c) override {
    if (blas_ != nullptr && Blas::takes(m, n, k)) return blas_->gemm(layout, m, n, k, a, b, c);
    const Product product{m, n, k, a, b, c};
    switch (layout) {
      case Layout::nn:
        return gemm_nn(product);
      case Layout::nt:
        return launch_product<Layout::nt>(context_, product);
      case Layout::tn:
        return launch_product<Layout::tn>(context_, product);
    }
  }

  std::unique_ptr<PreparedWeight> prepare(Index n, Index k, const float* weight) override {
    auto prepared = std::make_unique<TransposedWeight>(context_, n, k);
    prepared->fill(context_, weight);
    return prepared;
  }
  std::unique_ptr<PreparedWeight> prepare(const ConstPackedWeight& weight) override {
    return prepare_packed(context_, weight);
  }
  void refresh(PreparedWeight& prepared, const WeightView& weight) override {
    if (weight.is_packed()) return refresh_packed(context_, prepared, weight.packed());
    static_cast<TransposedWeight&>(prepared).fill(context_, weight.values());
  }

  void linear(const PreparedWeight& weight, Index m, const float* x, float* y) override {
    if (weight.format() != WeightFormat::float32) return linear_packed(context_, weight, m, x, y);
    const auto& transposed = static_cast<const TransposedWeight&>(weight);
    if (blas_ != nullptr) return gemm(Layout::nn, m, weight.rows(), weight.columns(), x, transposed.values(), y);
    gemm_nn({m, weight.rows(), weight.columns(), x, transposed.values(), y});
  }
  void linear_group(Index m, const float* x, std::span<const LinearTerm> terms) override {
    const Workspace::Scope scope(context_.workspace());
    const Group group = multiply(m, x, terms);
    launch_finish(context_, group.products, group.leaves);
  }
  void linear_swiglu(Index m, const float* x, const LinearTerm& gate, const LinearTerm& up, float* act,
                     float* gated) override {
    const Workspace::Scope scope(context_.workspace());
    const LinearTerm terms[] = {gate, up};
    const Group group = multiply(m, x, terms);
    for_each(context_, m * gate.weight->rows(), FinishSwiglu{group.products, group.leaves, act, gated});
  }
  // The byte_size() that prepare() would give.
  std::size_t prepared_bytes(WeightFormat format, Index n, Index k) const override {
    return stored_bytes(format, n, k);
  }
  // values[i, :] = F(the expanded row rows[i])
  void gather_rows(const PreparedWeight& weight, Index count, const std::int32_t* rows, float* values) override {
    if (weight.format() != WeightFormat::float32) return gather_prepared(context_, weight, count, rows, values);
    const auto& transposed = static_cast<const TransposedWeight&>(weight);
    for_each(context_, count * weight.columns(),
             GatherColumns{weight.rows(), weight.columns(), rows, transposed.values(), values});
  }
  // What was prepared, on the host.
  Weight stored(const PreparedWeight& weight) override {
    if (weight.format() != WeightFormat::float32) return stored_packed(context_, weight);
    const Index n = weight.rows(), k = weight.columns();
    DeviceArray<float> values(context_.memory(), n * k);
    launch_transpose(context_, k, n, static_cast<const TransposedWeight&>(weight).values(), values.data());
    Array host = Array::zeros({n, k});
    values.download(host.values<float>().data());
    return host;
  }
  void expand(const ConstPackedWeight& packed, float* values) override { expand_packed(context_, packed, values); }

  void add_bias(Index m, Index n, const float* bias, float* y) override {
    for_each(context_, m * n, AddBias{n, bias, y});
  }
  void column_sum(Index rows, Index width, const float* v, float* out) override {
    launch_column_sum(context_, rows, width, v, out);
  }
  float dot(Index n, const float* a, const float* b) override {
    launch_dot(context_, n, a, b, result_.data());
    return result();
  }
  float sum(Index n, const float* x) override {
    launch_column_sum(context_, n, 1, x, result_.data());
    return result();
  }

 private:
  void gemm_nn(const Product& g) {
    if (g.m > kMostRows) return launch_product<Layout::nn>(context_, g);
    const Workspace::Scope scope(context_.workspace());
    RowProducts products{g.m, g.k, g.a, 1, {{g.n, g.b, g.c, nullptr, nullptr, nullptr}}};
    const Index leaves = leaf_count(g.k);
    launch_rows(context_, products, leaves);
    launch_finish(context_, products, leaves);
  }

  // Products whose leaves are there, in the workspace: what follows them is left to do.
  struct Group {
    RowProducts products{};
    Index leaves = 1;
  };
  Group multiply(Index m, const float* x, std::span<const LinearTerm> terms) {
    Group group;
    group.products.m = m;
    group.products.a = x;
    bool together = m <= kMostRows && blas_ == nullptr;
    for (const LinearTerm& term : terms) {
      RowTerm& own = group.products.terms[group.products.count++];
      own = {term.weight->rows(), nullptr, term.y, term.y, term.bias, term.residual};
      group.products.k = term.weight->columns();
      together = together && term.weight->format() == WeightFormat::float32;
      if (together) own.b = static_cast<const TransposedWeight*>(term.weight)->values();
    }
    if (together) {
      group.leaves = leaf_count(group.products.k);
      launch_rows(context_, group.products, group.leaves);
    } else {
      for (const LinearTerm& term : terms) linear(*term.weight, m, x, term.y);
    }
    return group;
  }

  float result() {
    float value = 0.0F;
    result_.download(&value);
    return value;
  }

  Context& context_;
  const Blas* blas_;
  DeviceArray<float> result_{context_.memory(), 1};
};

}  // namespace

void launch_nt(Context& context, Index m, Index n, Index k, const float* x, const float* w, float* y) {
  launch_product<Layout::nt>(context, {m, n, k, x, w, y});
}

std::unique_ptr<LinearKernels> make_linear(Context& context, const Blas* blas) {
  return std::make_unique<LinearGpu>(context, blas);
}

}  // namespace samba::SAMBA_GPU
