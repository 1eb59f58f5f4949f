// The vendor's matrix product, for the numeric mode fast and as the peer of samba bench: cuBLAS, as it is found on the
// machine when it is asked for (samba neither links nor needs it). For HIP and the host adapter there is none.
#pragma once

#include <climits>
#include <memory>
#include <string>

#include "samba/backends/gpu/platform.h"
#include "samba/kernels/linear.h"

#if defined(__CUDACC__)
#include <dlfcn.h>
#endif

namespace samba::SAMBA_GPU {

// On the stream of one context.
class Blas {
 public:
  // Null when the machine has none.
  static std::unique_ptr<Blas> open(Context& context);
  const std::string& description() const { return description_; }  // "cuBLAS 120103"

  // Whether the library counts so far.
  static bool takes(Index m, Index n, Index k) { return m <= INT_MAX && n <= INT_MAX && k <= INT_MAX; }
  // As LinearKernels::gemm.
  void gemm(Layout layout, Index m, Index n, Index k, const float* a, const float* b, float* c) const;

  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;
  ~Blas();

 private:
  Blas() = default;
  std::string description_;

#if defined(__CUDACC__)
  // Of the C interface of cuBLAS; enumerations are ints.
  using Create = int (*)(void** handle);
  using Destroy = int (*)(void* handle);
  using SetStream = int (*)(void* handle, cudaStream_t stream);
  using GetVersion = int (*)(void* handle, int* version);
  using Sgemm = int (*)(void* handle, int transpose_a, int transpose_b, int m, int n, int k, const float* alpha,
                        const float* a, int lda, const float* b, int ldb, const float* beta, float* c, int ldc);
  void* handle_ = nullptr;
  Destroy destroy_ = nullptr;
  Sgemm sgemm_ = nullptr;
#endif
};

#if defined(__CUDACC__)

inline std::unique_ptr<Blas> Blas::open(Context& context) {
  void* library = nullptr;
  for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"}) {
    if (library = dlopen(name, RTLD_NOW | RTLD_LOCAL); library != nullptr) break;
  }
  if (library == nullptr) return nullptr;
  const auto create = reinterpret_cast<Create>(dlsym(library, "cublasCreate_v2"));
  const auto set_stream = reinterpret_cast<SetStream>(dlsym(library, "cublasSetStream_v2"));
  const auto get_version = reinterpret_cast<GetVersion>(dlsym(library, "cublasGetVersion_v2"));
  std::unique_ptr<Blas> blas(new Blas);
  blas->destroy_ = reinterpret_cast<Destroy>(dlsym(library, "cublasDestroy_v2"));
  blas->sgemm_ = reinterpret_cast<Sgemm>(dlsym(library, "cublasSgemm_v2"));
  int version = 0;
  if (create == nullptr || set_stream == nullptr || get_version == nullptr || blas->destroy_ == nullptr ||
      blas->sgemm_ == nullptr || create(&blas->handle_) != 0 || set_stream(blas->handle_, context.stream()) != 0 ||
      get_version(blas->handle_, &version) != 0) {
    return nullptr;
  }
  blas->description_ = "cuBLAS " + std::to_string(version);
  return blas;
}

inline Blas::~Blas() {
  if (handle_ != nullptr) destroy_(handle_);
}

// The library's matrices lie by columns: it computes the transpose of c from those of b and a.
inline void Blas::gemm(Layout layout, Index m, Index n, Index k, const float* a, const float* b, float* c) const {
  const float one = 1.0F, zero = 0.0F;
  const bool b_transposed = layout == Layout::nt, a_transposed = layout == Layout::tn;
  const auto size = [](Index value) { return static_cast<int>(value); };
  const int status = sgemm_(handle_, b_transposed ? 1 : 0, a_transposed ? 1 : 0, size(n), size(m), size(k), &one, b,
                            size(b_transposed ? k : n), a, size(a_transposed ? m : k), &zero, c, size(n));
  if (status != 0) refuse_device_call(kTargetName, "a product of cuBLAS", "status " + std::to_string(status));
}

#else

inline std::unique_ptr<Blas> Blas::open(Context&) { return nullptr; }
inline Blas::~Blas() = default;
inline void Blas::gemm(Layout, Index, Index, Index, const float*, const float*, float*) const {}

#endif

}  // namespace samba::SAMBA_GPU
