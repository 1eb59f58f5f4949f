// The executor of one target: its context and its families.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/backends/gpu/targets.h"
#include "samba/core/error.h"

namespace samba::SAMBA_GPU {

class GpuExecutor final : public Executor {
 public:
  explicit GpuExecutor(const ExecutorOptions& options) : context_(options) {}

  std::string name() const override { return kTargetName; }
  std::string instruction_set() const override { return context_.device_name(); }
  int threads() const override { return context_.threads(); }
  NumericMode numeric_mode() const override { return NumericMode::identical; }

  Memory& memory() override { return context_.memory(); }
  AttentionKernels& attention() override { return *attention_; }
  ConvKernels& conv() override { return *conv_; }
  ElementwiseKernels& elementwise() override { return *elementwise_; }
  EmbeddingKernels& embedding() override { return *embedding_; }
  Fixed15Kernels& fixed15() override { return *fixed15_; }
  LinearKernels& linear() override { return *linear_; }
  LossKernels& loss() override { return *loss_; }
  Mamba1Kernels& mamba1() override { return offered(mamba1_, "mamba1"); }
  Mamba2Kernels& mamba2() override { return offered(mamba2_, "mamba2"); }
  Mamba3Kernels& mamba3() override { return offered(mamba3_, "mamba3"); }
  NormKernels& norm() override { return *norm_; }
  OptimizerKernels& optimizer() override { return *optimizer_; }
  RandomKernels& random() override { return *random_; }
  RopeKernels& rope() override { return *rope_; }

  Context& context() { return context_; }

 private:
  template <class Kernels>
  static Kernels& offered(const std::unique_ptr<Kernels>& kernels, const char* kind) {
    if (kernels == nullptr) {
      refuse_unsupported(std::string("blocks of kind ") + kind + " are not offered by the device " + kTargetName);
    }
    return *kernels;
  }

  Context context_;
  std::unique_ptr<LinearKernels> linear_ = make_linear(context_);
  std::unique_ptr<AttentionKernels> attention_ = make_attention(context_);
  std::unique_ptr<ConvKernels> conv_ = make_conv(context_);
  std::unique_ptr<ElementwiseKernels> elementwise_ = make_elementwise(context_);
  std::unique_ptr<EmbeddingKernels> embedding_ = make_embedding(context_);
  std::unique_ptr<Fixed15Kernels> fixed15_ = make_fixed15(context_);
  std::unique_ptr<LossKernels> loss_ = make_loss(context_);
  std::unique_ptr<Mamba1Kernels> mamba1_ = make_mamba1(context_);
  std::unique_ptr<Mamba2Kernels> mamba2_ = make_mamba2(context_);
  std::unique_ptr<Mamba3Kernels> mamba3_ = make_mamba3(context_);
  std::unique_ptr<NormKernels> norm_ = make_norm(context_);
  std::unique_ptr<OptimizerKernels> optimizer_ = make_optimizer(context_);
  std::unique_ptr<RandomKernels> random_ = make_random(context_);
  std::unique_ptr<RopeKernels> rope_ = make_rope(context_);
};

std::unique_ptr<Executor> make_executor(const ExecutorOptions& options) {
  if (options.numeric_mode != NumericMode::identical) {
    refuse_unsupported("numeric mode " + std::string(numeric_mode_name(options.numeric_mode)) +
                       " is not offered by the device " + kTargetName + "; accepted: identical");
  }
  return std::make_unique<GpuExecutor>(options);
}

#if !defined(__HIP__) && !defined(__CUDACC__)
std::vector<Site> barrier_sites(Executor& executor) {
  return static_cast<GpuExecutor&>(executor).context().runner().barrier_sites();
}
#endif

}  // namespace samba::SAMBA_GPU
