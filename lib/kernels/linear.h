// The matrix product "gemm fp32 v1" (spec 10 section 3) and linear layers (section 4).
//
// Every cell depends on its K pairs and on K alone: leaves of 128, one serial chain of fused, flushed steps each, and
// the balanced tree. All matrices are row-major and dense.
#pragma once

#include <memory>

#include "samba/core/array.h"
#include "samba/kernels/weight.h"

namespace samba {

enum class Layout {
  nn,  // a[m, k]  b[k, n]
  nt,  // a[m, k]  b[n, k]
  tn,  // a[k, m]  b[k, n]
};

// A weight[n, k] laid out for y = x W^T in the way its executor likes. Made by LinearKernels::prepare; it is a copy,
// later edits of the weight are seen after refresh(). A packed weight stays packed and is expanded by each product.
class PreparedWeight {
 public:
  virtual ~PreparedWeight() = default;
  virtual Index rows() const = 0;     // n, the output width
  virtual Index columns() const = 0;  // k, the input width
  virtual WeightFormat format() const = 0;
  virtual std::size_t byte_size() const = 0;  // of what a product reads
  // Rows of blocks are read where they lie; refresh() takes such a weight only when this is true.
  virtual bool reads_blocks() const { return false; }
};

class LinearKernels {
 public:
  virtual ~LinearKernels() = default;

  // c[m, n] = the product. m, n, k >= 1. c overlaps neither operand.
  virtual void gemm(Layout layout, Index m, Index n, Index k, const float* a, const float* b, float* c) = 0;

  virtual std::unique_ptr<PreparedWeight> prepare(Index n, Index k, const float* weight) = 0;
  virtual std::unique_ptr<PreparedWeight> prepare(const ConstPackedWeight& weight) = 0;
  // `weight` has the format and size of the prepared one. Allocates nothing.
  virtual void refresh(PreparedWeight& prepared, const WeightView& weight) = 0;
  // The byte_size() that prepare() would give.
  virtual std::size_t prepared_bytes(WeightFormat format, Index n, Index k) const = 0;
  // y[m, n] = x[m, k] W^T, W the expanded values of a packed weight
  virtual void linear(const PreparedWeight& weight, Index m, const float* x, float* y) = 0;

  // values[i, :] = F(the expanded row rows[i] of the weight): an embedding from its head's layout. rows: int32, device.
  virtual void gather_rows(const PreparedWeight& weight, Index count, const std::int32_t* rows, float* values) = 0;
  // What was prepared, bit for bit, on the host.
  virtual Weight stored(const PreparedWeight& weight) = 0;

  // values[rows, columns] = the expanded matrix, not flushed                        spec 50 A4, A5
  virtual void expand(const ConstPackedWeight& packed, float* values) = 0;

  // y[m, n] = F(F(y) + F(bias[n])), in place                                       spec 10 section 4.1
  virtual void add_bias(Index m, Index n, const float* bias, float* y) = 0;

  // out[w] = sum over rows of v[row, w]: the product with a row of ones            spec 41 section 2
  virtual void column_sum(Index rows, Index width, const float* v, float* out) = 0;

  // Numbers for the host; each waits for its result.
  virtual float dot(Index n, const float* a, const float* b) = 0;
  virtual float sum(Index n, const float* x) = 0;  // dot(x, ones)
};

}  // namespace samba
