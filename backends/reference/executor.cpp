#include "samba/backends/reference/executor.h"

#include "samba/backends/host_memory.h"
#include "samba/backends/reference/attention.h"
#include "samba/backends/reference/conv.h"
#include "samba/backends/reference/elementwise.h"
#include "samba/backends/reference/embedding.h"
#include "samba/backends/reference/fixed15.h"
#include "samba/backends/reference/linear.h"
#include "samba/backends/reference/loss.h"
#include "samba/backends/reference/mamba1.h"
#include "samba/backends/reference/mamba2.h"
#include "samba/backends/reference/mamba3.h"
#include "samba/backends/reference/norm.h"
#include "samba/backends/reference/optimizer.h"
#include "samba/backends/reference/random.h"
#include "samba/backends/reference/rope.h"

namespace samba::reference {

namespace {

class ReferenceExecutor final : public Executor {
 public:
  std::string name() const override { return "reference"; }
  std::string instruction_set() const override { return "scalar"; }
  int threads() const override { return 1; }
  NumericMode numeric_mode() const override { return NumericMode::identical; }

  Memory& memory() override { return memory_; }
  AttentionKernels& attention() override { return attention_; }
  ConvKernels& conv() override { return conv_; }
  ElementwiseKernels& elementwise() override { return elementwise_; }
  EmbeddingKernels& embedding() override { return embedding_; }
  Fixed15Kernels& fixed15() override { return fixed15_; }
  LinearKernels& linear() override { return linear_; }
  LossKernels& loss() override { return loss_; }
  Mamba1Kernels& mamba1() override { return mamba1_; }
  Mamba2Kernels& mamba2() override { return mamba2_; }
  Mamba3Kernels& mamba3() override { return mamba3_; }
  NormKernels& norm() override { return norm_; }
  OptimizerKernels& optimizer() override { return optimizer_; }
  RandomKernels& random() override { return random_; }
  RopeKernels& rope() override { return rope_; }

 private:
  HostMemory memory_;
  AttentionReference attention_;
  ConvReference conv_;
  ElementwiseReference elementwise_;
  EmbeddingReference embedding_;
  Fixed15Reference fixed15_;
  LinearReference linear_;
  LossReference loss_;
  Mamba1Reference mamba1_;
  Mamba2Reference mamba2_;
  Mamba3Reference mamba3_;
  NormReference norm_;
  OptimizerReference optimizer_;
  RandomReference random_;
  RopeReference rope_;
};

}  // namespace

std::unique_ptr<Executor> make_reference_executor() { return std::make_unique<ReferenceExecutor>(); }

}  // namespace samba::reference
