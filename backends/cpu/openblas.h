// OpenBLAS as it is found on the machine when it is asked for: samba neither links nor needs it.
#pragma once

#include <string>

#include "samba/core/array.h"

namespace samba::cpu {

// One thread a call: whoever wants more cores makes calls from several threads. (samba bench alone, which measures the
// library, lets it use threads of its own.)
class OpenBlas {
 public:
  // The library, loaded at the first call; null when the machine has none. It stays loaded.
  static const OpenBlas* find();

  // To be called before calls from other threads follow: keeps the library from using threads of its own.
  void use_one_thread() const { use_threads(1); }
  void use_threads(int count) const { set_num_threads_(count); }  // for all calls that follow
  // c[m, n] = a b, all row-major with rows of lda, ldb and ldc floats; transposed: a is stored [k, m], b [n, k].
  void sgemm(bool transpose_a, bool transpose_b, Index m, Index n, Index k, const float* a, Index lda, const float* b,
             Index ldb, float* c, Index ldc) const;
  // y[n] = w x, w [n, k] row-major.
  void sgemv(Index n, Index k, const float* w, const float* x, float* y) const;

  const std::string& description() const { return description_; }  // "OpenBLAS 0.3.21, kernels Zen"

 private:
  using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                         int lda, const float* b, int ldb, float beta, float* c, int ldc);
  using Sgemv = void (*)(int order, int transpose, int m, int n, float alpha, const float* a, int lda, const float* x,
                         int incx, float beta, float* y, int incy);

  OpenBlas() = default;
  bool load();

  Sgemm sgemm_ = nullptr;
  Sgemv sgemv_ = nullptr;
  void (*set_num_threads_)(int) = nullptr;
  std::string description_;
};

}  // namespace samba::cpu
