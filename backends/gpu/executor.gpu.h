// The executor of one target: its context and its families.
#pragma once

#include "samba/backends/gpu/blas.gpu.h"
#include "samba/backends/gpu/device_errors.h"
#include "samba/backends/gpu/families.h"
#include "samba/backends/gpu/limits.gpu.h"
#include "samba/backends/gpu/targets.h"
#include "samba/core/error.h"
#include "samba/kernels/device_bench.h"
#include "samba/kernels/step_graph.h"

namespace samba::SAMBA_GPU {

namespace {

struct Probe {
  float* out;
  SAMBA_DEVICE void operator()(Index i) const { out[i] = static_cast<float>(i); }
};

// A program built for other devices says so now, not in the middle of a training run.
void try_kernel(Context& context) {
  DeviceArray<float> cell(context.memory(), 1);
  try {
    for_each(context, 1, Probe{cell.data()});
    context.memory().synchronize();
  } catch (const Error& error) {
    refuse_device_code(context.description(), error);
  }
}

}  // namespace

class GpuExecutor final : public Executor, public DeviceBench, public StepGraph {
 public:
  explicit GpuExecutor(const ExecutorOptions& options) : context_(options), numeric_mode_(options.numeric_mode) {
    try_kernel(context_);
    if (numeric_mode_ == NumericMode::fast) {
      if (blas() == nullptr) {
        refuse_unsupported(std::string("numeric mode fast needs cuBLAS on the device ") + kTargetName +
                           ", which is not there; accepted: identical");
      }
      linear_ = make_linear(context_, blas());
    }
  }

  std::string name() const override { return kTargetName; }
  std::string instruction_set() const override { return context_.device_name(); }
  int threads() const override { return context_.threads(); }
  NumericMode numeric_mode() const override { return numeric_mode_; }

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

  std::string device_description() const override { return context_.description(); }
  double measure_flops() override { return SAMBA_GPU::measure_flops(context_); }
  double measure_read_bytes() override { return SAMBA_GPU::measure_read_bytes(context_); }
  std::string blas_description() override { return blas() == nullptr ? "" : blas()->description(); }
  void library_gemm(Layout layout, Index m, Index n, Index k, const float* a, const float* b, float* c) override {
    blas()->gemm(layout, m, n, k, a, b, c);
  }

  // The products of cuBLAS are none of our launches: with them a step runs as it comes.
  void begin_step() override {
    if (numeric_mode_ != NumericMode::fast) context_.step().begin();
  }
  void run_step() override { context_.step().run(); }
  void drop_step() noexcept override { context_.step().drop(); }
  void search_non_finite(Index n, const float* x, std::int64_t* first) override {
    launch_search(context_, n, x, first);
  }

  Context& context() { return context_; }
  bool has_every_kernel() const { return mamba1_ != nullptr && mamba2_ != nullptr && mamba3_ != nullptr; }

 private:
  template <class Kernels>
  static Kernels& offered(const std::unique_ptr<Kernels>& kernels, const char* kind) {
    if (kernels == nullptr) {
      refuse_unsupported(std::string("blocks of kind ") + kind + " are not offered by the device " + kTargetName);
    }
    return *kernels;
  }

  const Blas* blas() {
    if (!asked_for_blas_) blas_ = Blas::open(context_);
    asked_for_blas_ = true;
    return blas_.get();
  }

  Context context_;
  NumericMode numeric_mode_;
  bool asked_for_blas_ = false;
  std::unique_ptr<Blas> blas_;
  std::unique_ptr<LinearKernels> linear_ = make_linear(context_, nullptr);
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
  if (options.numeric_mode == NumericMode::deterministic) {
    refuse_unsupported("numeric mode " + std::string(numeric_mode_name(options.numeric_mode)) +
                       " is not offered by the device " + kTargetName + "; accepted: identical, fast");
  }
  return std::make_unique<GpuExecutor>(options);
}

bool has_every_kernel(const Executor& executor) { return static_cast<const GpuExecutor&>(executor).has_every_kernel(); }

#if !defined(__HIP__) && !defined(__CUDACC__)
StepCounts step_counts(Executor& executor) { return static_cast<GpuExecutor&>(executor).context().step().counts(); }
Traffic traffic(Executor& executor) { return static_cast<GpuExecutor&>(executor).context().traffic(); }

std::vector<Site> barrier_sites(Executor& executor) {
  return static_cast<GpuExecutor&>(executor).context().runner().barrier_sites();
}
#endif

}  // namespace samba::SAMBA_GPU
