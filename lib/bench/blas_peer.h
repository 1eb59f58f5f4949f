// OpenBLAS beside the identical product, in this process: loaded when it is asked for, never linked.
#pragma once

#include <memory>
#include <string>

#include "samba/kernels/linear.h"

namespace samba::bench {

class BlasPeer {
 public:
  // Null where the library is not installed. Some machines pin an old kernel by OPENBLAS_CORETYPE and
  // OPENBLAS_L2_SIZE; both are taken out of the environment first.
  static std::unique_ptr<BlasPeer> load();

  std::string description() const;  // "OpenBLAS 0.3.21, kernel Zen"
  void set_threads(int threads) { set_threads_(threads); }
  void gemm(Layout layout, Index m, Index n, Index k, const float* a, const float* b, float* c) const;

 private:
  BlasPeer() = default;

  using Gemm = void(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                    int lda, const float* b, int ldb, float beta, float* c, int ldc);
  Gemm* gemm_ = nullptr;
  void (*set_threads_)(int) = nullptr;
  char* (*kernel_name_)() = nullptr;
  char* (*configuration_)() = nullptr;
};

}  // namespace samba::bench
