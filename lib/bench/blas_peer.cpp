#include "samba/bench/blas_peer.h"

#include <dlfcn.h>

#include <cstdlib>

namespace samba::bench {

namespace {

// Of cblas.h.
constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;

template <class F>
bool find(void* library, const char* name, F*& function) {
  function = reinterpret_cast<F*>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

std::unique_ptr<BlasPeer> BlasPeer::load() {
  unsetenv("OPENBLAS_CORETYPE");
  unsetenv("OPENBLAS_L2_SIZE");
  for (const char* name : {"libopenblas.so.0", "libopenblas.so", "libopenblas.dylib"}) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    std::unique_ptr<BlasPeer> peer(new BlasPeer);
    if (find(library, "cblas_sgemm", peer->gemm_) && find(library, "openblas_set_num_threads", peer->set_threads_) &&
        find(library, "openblas_get_corename", peer->kernel_name_) &&
        find(library, "openblas_get_config", peer->configuration_)) {
      return peer;
    }
  }
  return nullptr;
}

std::string BlasPeer::description() const {
  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ...": the name and the version
  const std::string configuration = configuration_();
  const std::size_t version = configuration.find(' ');
  const std::size_t end = version == std::string::npos ? version : configuration.find(' ', version + 1);
  return configuration.substr(0, end) + ", kernel " + kernel_name_();
}

void BlasPeer::gemm(Layout layout, Index m, Index n, Index k, const float* a, const float* b, float* c) const {
  const int rows = static_cast<int>(m), columns = static_cast<int>(n), depth = static_cast<int>(k);
  const bool a_transposed = layout == Layout::tn, b_transposed = layout == Layout::nt;
  gemm_(kRowMajor, a_transposed ? kTranspose : kNoTranspose, b_transposed ? kTranspose : kNoTranspose, rows, columns,
        depth, 1.0F, a, a_transposed ? rows : depth, b, b_transposed ? depth : columns, 0.0F, c, columns);
}

}  // namespace samba::bench
