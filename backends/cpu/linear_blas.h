// LinearKernels of the numeric modes deterministic and fast: float32 products by OpenBLAS, in whatever order of sums it
// has; all else as LinearCpu does it. OpenBLAS gets one thread a call, the calls come from the threads of the executor,
// each with a part of the output's columns: in the mode fast one part a thread, in the mode deterministic parts of a
// fixed width, so that the calls, and with them the bits, do not depend on the number of threads.
#pragma once

#include <memory>

#include "samba/backends/cpu/linear.h"
#include "samba/backends/cpu/openblas.h"

namespace samba::cpu {

class LinearBlas final : public LinearKernels {
 public:
  LinearBlas(Context& context, LinearCpu& own, const OpenBlas& blas, bool deterministic)
      : context_(context), own_(own), blas_(blas), deterministic_(deterministic) {}

  void gemm(Layout layout, Index m, Index n, Index k, const float* a, const float* b, float* c) override;
  std::unique_ptr<PreparedWeight> prepare(Index n, Index k, const float* weight) override;
  std::unique_ptr<PreparedWeight> prepare(const ConstPackedWeight& weight) override { return own_.prepare(weight); }
  void refresh(PreparedWeight& prepared, const WeightView& weight) override;
  void linear(const PreparedWeight& weight, Index m, const float* x, float* y) override;
  std::size_t prepared_bytes(WeightFormat format, Index n, Index k) const override;
  void gather_rows(const PreparedWeight& weight, Index count, const std::int32_t* rows, float* values) override;
  Weight stored(const PreparedWeight& weight) override;
  void expand(const ConstPackedWeight& packed, float* values) override { own_.expand(packed, values); }
  void add_bias(Index m, Index n, const float* bias, float* y) override { own_.add_bias(m, n, bias, y); }
  void column_sum(Index rows, Index width, const float* v, float* out) override {
    own_.column_sum(rows, width, v, out);
  }
  float dot(Index n, const float* a, const float* b) override { return own_.dot(n, a, b); }
  float sum(Index n, const float* x) override { return own_.sum(n, x); }

 private:
  // body(first, end) for parts of the columns [0, n) of an [m, n] product.
  template <class Body>
  void in_columns(Index n, Body&& body);

  Context& context_;
  HostMemory memory_;
  LinearCpu& own_;
  const OpenBlas& blas_;
  bool deterministic_;
};

}  // namespace samba::cpu
