// What executors of devices offer beside their kernels (a dynamic_cast of the Executor finds it), for samba bench: the
// limits of the device and the vendor's matrix product.
#pragma once

#include <string>

#include "samba/kernels/linear.h"

namespace samba {

class DeviceBench {
 public:
  virtual ~DeviceBench() = default;
  virtual std::string device_description() const = 0;  // "NVIDIA H200 (sm_90)"

  // Measured now: fused multiply-adds in registers (two operations each) and bytes read from device memory, a second.
  virtual double measure_flops() = 0;
  virtual double measure_read_bytes() = 0;

  // "cuBLAS 120103"; empty: there is none.
  virtual std::string blas_description() = 0;
  // The product of LinearKernels::gemm by the library; operands in device memory.
  virtual void library_gemm(Layout layout, Index m, Index n, Index k, const float* a, const float* b, float* c) = 0;
};

}  // namespace samba
