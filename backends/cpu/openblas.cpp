#include "samba/backends/cpu/openblas.h"

#include <dlfcn.h>

namespace samba::cpu {

namespace {

// Values of the C interface of BLAS.
constexpr int kRowMajor = 101, kAsStored = 111, kTransposed = 112;

template <class Function>
bool find_symbol(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

int as_int(Index value) { return static_cast<int>(value); }

}  // namespace

bool OpenBlas::load() {
  void* library = nullptr;
  for (const char* name : {"libopenblas.so.0", "libopenblas.so", "libopenblas.dylib"}) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  char* (*configuration)() = nullptr;
  char* (*kernels)() = nullptr;
  if (library == nullptr || !find_symbol(library, "cblas_sgemm", sgemm_) ||
      !find_symbol(library, "cblas_sgemv", sgemv_) ||
      !find_symbol(library, "openblas_set_num_threads", set_num_threads_) ||
      !find_symbol(library, "openblas_get_config", configuration) ||
      !find_symbol(library, "openblas_get_corename", kernels)) {
    return false;
  }
  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ...": the name and the version
  const std::string text = configuration();
  const std::size_t second = text.find(' ', text.find(' ') + 1);
  description_ = text.substr(0, second) + ", kernels " + kernels();
  return true;
}

const OpenBlas* OpenBlas::find() {
  static const OpenBlas* const found = [] {
    static OpenBlas blas;
    return blas.load() ? &blas : nullptr;
  }();
  return found;
}

void OpenBlas::sgemm(bool transpose_a, bool transpose_b, Index m, Index n, Index k, const float* a, Index lda,
                     const float* b, Index ldb, float* c, Index ldc) const {
  sgemm_(kRowMajor, transpose_a ? kTransposed : kAsStored, transpose_b ? kTransposed : kAsStored, as_int(m), as_int(n),
         as_int(k), 1.0F, a, as_int(lda), b, as_int(ldb), 0.0F, c, as_int(ldc));
}

void OpenBlas::sgemv(Index n, Index k, const float* w, const float* x, float* y) const {
  sgemv_(kRowMajor, kAsStored, as_int(n), as_int(k), 1.0F, w, as_int(k), x, 1, 0.0F, y, 1);
}

}  // namespace samba::cpu
