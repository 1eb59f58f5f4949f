// An executor: one device that carries out the arithmetic of the spec. Blocks are written against this interface only;
// scalar reference, SIMD with threads, CUDA and HIP are implementations of it (backends/).
//
// Threads: an executor and what was made from it are used by one thread at a time.
#pragma once

#include <string>

#include "samba/core/numeric_mode.h"
#include "samba/kernels/attention.h"
#include "samba/kernels/conv.h"
#include "samba/kernels/elementwise.h"
#include "samba/kernels/embedding.h"
#include "samba/kernels/fixed15.h"
#include "samba/kernels/linear.h"
#include "samba/kernels/loss.h"
#include "samba/kernels/mamba1.h"
#include "samba/kernels/mamba2.h"
#include "samba/kernels/mamba3.h"
#include "samba/kernels/memory.h"
#include "samba/kernels/norm.h"
#include "samba/kernels/optimizer.h"
#include "samba/kernels/random.h"
#include "samba/kernels/rope.h"

namespace samba {

class Executor {
 public:
  virtual ~Executor() = default;

  virtual std::string name() const = 0;             // "reference", "cpu", ...
  virtual std::string instruction_set() const = 0;  // "scalar", "avx2", "avx512", ...
  virtual int threads() const = 0;
  virtual NumericMode numeric_mode() const = 0;

  virtual Memory& memory() = 0;
  virtual ElementwiseKernels& elementwise() = 0;
  virtual LinearKernels& linear() = 0;
  virtual Fixed15Kernels& fixed15() = 0;
  virtual NormKernels& norm() = 0;
  virtual EmbeddingKernels& embedding() = 0;
  virtual RandomKernels& random() = 0;
  virtual LossKernels& loss() = 0;
  virtual OptimizerKernels& optimizer() = 0;
  virtual ConvKernels& conv() = 0;
  virtual RopeKernels& rope() = 0;
  virtual AttentionKernels& attention() = 0;
  virtual Mamba1Kernels& mamba1() = 0;
  virtual Mamba2Kernels& mamba2() = 0;
  virtual Mamba3Kernels& mamba3() = 0;
};

}  // namespace samba
