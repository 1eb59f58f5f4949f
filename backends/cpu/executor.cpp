#include "samba/backends/cpu/executor.h"

#include "samba/backends/cpu/attention.h"
#include "samba/backends/cpu/context.h"
#include "samba/backends/cpu/conv.h"
#include "samba/backends/cpu/elementwise.h"
#include "samba/backends/cpu/embedding.h"
#include "samba/backends/cpu/fixed15.h"
#include "samba/backends/cpu/linear.h"
#include "samba/backends/cpu/linear_blas.h"
#include "samba/backends/cpu/loss.h"
#include "samba/backends/cpu/mamba1.h"
#include "samba/backends/cpu/mamba2.h"
#include "samba/backends/cpu/mamba3.h"
#include "samba/backends/cpu/norm.h"
#include "samba/backends/cpu/optimizer.h"
#include "samba/backends/cpu/random.h"
#include "samba/backends/cpu/rope.h"
#include "samba/backends/host_memory.h"
#include "samba/core/error.h"

namespace samba::cpu {

namespace {

struct InstructionSet {
  const char* name;
  std::int64_t target;  // Highway's bit; 0: the scalar fallback
};
constexpr InstructionSet kInstructionSets[] = {
#if HWY_ARCH_X86
    {"avx512", HWY_AVX3},
    {"avx2", HWY_AVX2},
#elif HWY_ARCH_ARM
    {"neon", HWY_NEON},
#endif
    {"scalar", 0},
};

bool is_available(const InstructionSet& set) {
  return set.target == 0 || (hwy::SupportedTargets() & HWY_TARGETS & set.target) != 0;
}

const InstructionSet& find_instruction_set(const std::string& name) {
  std::string available;
  for (const InstructionSet& set : kInstructionSets) {
    if (!is_available(set)) continue;
    if (name.empty() || name == set.name) return set;
    available += std::string(available.empty() ? "" : ", ") + set.name;
  }
  refuse_value("instruction set '" + name + "' is unknown or not offered by this machine; there are: " + available);
}

int usable_threads(int wanted) {
  if (wanted < 0) refuse_value("threads must be 0 (all cores) or positive, got " + std::to_string(wanted));
  return wanted > 0 ? wanted : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

class CpuExecutor final : public Executor {
 public:
  explicit CpuExecutor(const ExecutorOptions& options)
      : instruction_set_(find_instruction_set(options.instruction_set)),
        numeric_mode_(options.numeric_mode),
        context_(usable_threads(options.threads), instruction_set_.target) {
    if (numeric_mode_ == NumericMode::identical) return;
    if (const OpenBlas* blas = OpenBlas::find()) {
      relaxed_ = std::make_unique<LinearBlas>(context_, linear_, *blas, numeric_mode_ == NumericMode::deterministic);
    }
  }

  std::string name() const override { return "cpu"; }
  std::string instruction_set() const override { return instruction_set_.name; }
  int threads() const override { return context_.threads(); }
  NumericMode numeric_mode() const override { return numeric_mode_; }

  Memory& memory() override { return memory_; }
  AttentionKernels& attention() override { return attention_; }
  ConvKernels& conv() override { return conv_; }
  ElementwiseKernels& elementwise() override { return elementwise_; }
  EmbeddingKernels& embedding() override { return embedding_; }
  Fixed15Kernels& fixed15() override { return fixed15_; }
  LinearKernels& linear() override {
    if (relaxed_ != nullptr) return *relaxed_;
    return linear_;
  }
  LossKernels& loss() override { return loss_; }
  Mamba1Kernels& mamba1() override { return mamba1_; }
  Mamba2Kernels& mamba2() override { return mamba2_; }
  Mamba3Kernels& mamba3() override { return mamba3_; }
  NormKernels& norm() override { return norm_; }
  OptimizerKernels& optimizer() override { return optimizer_; }
  RandomKernels& random() override { return random_; }
  RopeKernels& rope() override { return rope_; }

 private:
  const InstructionSet& instruction_set_;
  NumericMode numeric_mode_;
  Context context_;
  HostMemory memory_;
  AttentionCpu attention_{context_};
  ConvCpu conv_{context_};
  ElementwiseCpu elementwise_{context_};
  EmbeddingCpu embedding_{context_};
  Fixed15Cpu fixed15_{context_};
  LinearCpu linear_{context_};
  std::unique_ptr<LinearBlas> relaxed_;  // of a mode that is not identical, where there is OpenBLAS
  LossCpu loss_{context_};
  Mamba1Cpu mamba1_{context_};
  Mamba2Cpu mamba2_{context_};
  Mamba3Cpu mamba3_{context_};
  NormCpu norm_{context_, linear_};
  OptimizerCpu optimizer_{context_};
  RandomCpu random_{context_};
  RopeCpu rope_{context_};
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(const ExecutorOptions& options) {
  return std::make_unique<CpuExecutor>(options);
}

std::vector<std::string> cpu_instruction_sets() {
  std::vector<std::string> names;
  for (const InstructionSet& set : kInstructionSets) {
    if (is_available(set)) names.emplace_back(set.name);
  }
  return names;
}

std::int64_t instruction_set_target(const std::string& name) { return find_instruction_set(name).target; }

}  // namespace samba::cpu
