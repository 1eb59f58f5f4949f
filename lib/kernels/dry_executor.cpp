#include "samba/kernels/dry_executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "samba/kernels/extended_gradients.h"
#include "samba/kernels/linear_groups.h"

namespace samba {

namespace {

constexpr std::uintptr_t kAlignment = 64;

class DryWeight final : public PreparedWeight {
 public:
  DryWeight(std::uint64_t& total, WeightFormat format, Index n, Index k, std::size_t bytes)
      : total_(total), format_(format), n_(n), k_(k), bytes_(bytes) {
    total_ += bytes_;
  }
  ~DryWeight() override { total_ -= bytes_; }
  Index rows() const override { return n_; }
  Index columns() const override { return k_; }
  WeightFormat format() const override { return format_; }
  std::size_t byte_size() const override { return bytes_; }

 private:
  std::uint64_t& total_;
  WeightFormat format_;
  Index n_, k_;
  std::size_t bytes_;
};

// Gradients beside the kernels' own are offered whatever the real executor does: a plan counts, the call refuses.
class DryElementwise final : public ElementwiseKernels, public ActivationGradients {
 public:
  void unary_backward(UnaryFunction, Index, const float*, const float*, float*) override {}
  void unary(UnaryFunction, Index, const float*, float*) override {}
  void binary(BinaryFunction, Index, const float*, const float*, float*) override {}
  void clamp(Index, const float*, float, float, float*) override {}
  void add(Index, const float*, const float*, float*) override {}
  void scale(Index, float, const float*, float*) override {}
  void flush(Index, const float*, float*) override {}
  void relu_forward(Index, const float*, float*) override {}
  void relu_backward(Index, const float*, const float*, float*) override {}
  void softcap_forward(Index, float, const float*, float*, float*) override {}
  void softcap_backward(Index, const float*, const float*, float*) override {}
  void swiglu_forward(Index, const float*, const float*, float*, float*) override {}
  void swiglu_backward(Index, const float*, const float*, const float*, const float*, float*, float*, float*) override {
  }
  void zero_padding(Index, Index, Index, const std::int32_t*, float*) override {}
  void copy_columns(Index, Index, const float*, Index, float*, Index) override {}
  Index first_non_finite(Index, const float*) override { return -1; }
};

class DryLinear : public LinearKernels {
 public:
  explicit DryLinear(LinearKernels& real) : real_(real) {}
  void gemm(Layout, Index, Index, Index, const float*, const float*, float*) override {}
  std::unique_ptr<PreparedWeight> prepare(Index n, Index k, const float*) override {
    return prepare(WeightFormat::float32, n, k);
  }
  std::unique_ptr<PreparedWeight> prepare(const ConstPackedWeight& weight) override {
    return prepare(weight.format, weight.rows, weight.columns);
  }
  std::size_t prepared_bytes(WeightFormat format, Index n, Index k) const override {
    return real_.prepared_bytes(format, n, k);
  }
  void refresh(PreparedWeight&, const WeightView&) override {}
  void linear(const PreparedWeight&, Index, const float*, float*) override {}
  void gather_rows(const PreparedWeight&, Index, const std::int32_t*, float*) override {}
  Weight stored(const PreparedWeight& weight) override { return Array::zeros({weight.rows(), weight.columns()}); }
  void expand(const ConstPackedWeight&, float*) override {}
  void add_bias(Index, Index, const float*, float*) override {}
  void column_sum(Index, Index, const float*, float*) override {}
  float dot(Index, const float*, const float*) override { return 0.0F; }
  float sum(Index, const float*) override { return 0.0F; }

  std::uint64_t total() const { return total_; }

 private:
  std::unique_ptr<PreparedWeight> prepare(WeightFormat format, Index n, Index k) {
    return std::make_unique<DryWeight>(total_, format, n, k, real_.prepared_bytes(format, n, k));
  }

  LinearKernels& real_;
  std::uint64_t total_ = 0;
};

// What a block finds offered, so that it takes the memory it takes there.
class DryLinearGroups final : public DryLinear, public LinearGroups {
 public:
  using DryLinear::DryLinear;
  void linear_group(Index, const float*, std::span<const LinearTerm>) override {}
  void linear_swiglu(Index, const float*, const LinearTerm&, const LinearTerm&, float*, float*) override {}
};

std::unique_ptr<DryLinear> make_dry_linear(LinearKernels& real) {
  if (dynamic_cast<LinearGroups*>(&real) != nullptr) return std::make_unique<DryLinearGroups>(real);
  return std::make_unique<DryLinear>(real);
}

class DryFixed15 final : public Fixed15Kernels {
 public:
  void quantize(Index, Index, const float*, std::int16_t*, std::int32_t*) override {}
  // Two planes of 16 bits would hold a row's code and what an executor keeps beside it.
  std::unique_ptr<PreparedWeight> prepare(Index n, Index k, const float*) override {
    return std::make_unique<DryWeight>(total_, WeightFormat::float32, n, k, static_cast<std::size_t>(4 * n * k));
  }
  void refresh(PreparedWeight&, const float*) override {}
  void linear(const PreparedWeight&, Index, const float*, float*) override {}
  std::uint64_t total() const { return total_; }

 private:
  std::uint64_t total_ = 0;
};

class DryNorm final : public NormKernels, public NormGradients {
 public:
  void rms_norm_heads_backward(Index, Index, Index, float, bool, const float*, const float*, const float*, float*,
                               float*) override {}
  void layer_norm_block_backward(Index, Index, float, const float*, const float*, const float*, float*, float*,
                                 float*) override {}
  void rms_norm_forward(Index, Index, float, bool, const float*, const float*, float*, float*, float*) override {}
  void rms_norm_backward(Index, Index, float, const float*, const float*, const float*, float*, float*,
                         float*) override {}
  void layer_norm_block(Index, Index, float, const float*, const float*, const float*, float*, float*) override {}
  void layer_norm_forward(Index, Index, float, const float*, const float*, const float*, float*) override {}
  void layer_norm_backward(Index, Index, float, const float*, const float*, const float*, float*, float*,
                           float*) override {}
  void mamba_norm_forward(Index, Index, float, const float*, const float*, float*, float*) override {}
  void mamba_norm_backward(Index, Index, float, const float*, const float*, const float*, const float*, const float*,
                           float*, float*) override {}
  void mamba12_norm_backward(Index, Index, float, const float*, const float*, const float*, const float*, const float*,
                             float*, float*, float*) override {}
};

class DryEmbedding final : public EmbeddingKernels {
 public:
  void embedding_forward(Index, Index, const std::int32_t*, const float*, float*) override {}
  void embedding_forward(Index, Index, const std::int32_t*, const ConstPackedWeight&, float*) override {}
  void embedding_backward(Index, Index, Index, const std::int32_t*, const float*, bool, Index, float*) override {}
};

class DryRandom final : public RandomKernels {
 public:
  void uniform(std::uint64_t, std::uint32_t, Index, float, float, float*) override {}
  void normal(std::uint64_t, std::uint32_t, Index, float, float, float*) override {}
  void dropout(const DropoutKey&, Index, const float*, float*) override {}
  void residual_dropout(const DropoutKey&, Index, const float*, const float*, float*) override {}
};

class DryLoss final : public LossKernels {
 public:
  void cross_entropy(const CrossEntropyShape&, const float*, const std::int32_t*, float, float*, float*,
                     const CrossEntropyStages&) override {}
  float chunked_lm_head_loss(Index, Index, Index, const float*, const float*, const std::int32_t*, float*,
                             float*) override {
    return 0.0F;
  }
};

class DryOptimizer final : public OptimizerKernels {
 public:
  void adam(const AdamScalars&, Index, const float*, float*, float*, float*) override {}
  void sgd(const SgdScalars&, Index, const float*, float*, float*) override {}
  void sums_of_squares(Index tensors, const Index*, const float*, float* sums) override {
    std::fill_n(sums, tensors, 0.0F);
  }
  void scale(Index, float, float*) override {}
};

class DryConv final : public ConvKernels {
 public:
  void conv_forward(const ConvCall&, float*, float*) override {}
  void update_window(const ConvCall&, float*) override {}
};

class DryRope final : public RopeKernels {
 public:
  void rotate(const RopeShape&, const float*, const float*, const float*, float*) override {}
  void rotate_backward(const RopeShape&, const float*, const float*, const float*, float*) override {}
};

class DryAttention final : public AttentionKernels, public SoftcapGradients {
 public:
  void attention_forward(const AttentionShape&, const float*, const KeyValueView&, float*,
                         const AttentionStages&) override {}
  void attention_backward(const AttentionShape&, const float*, const float*, const float*, const float*, float*, float*,
                          float*, const AttentionBackwardStages&) override {}
  void store_keys_values(const AttentionShape&, const float*, const float*, float*, float*,
                         const KeyValueView&) override {}
};

class DryMamba1 final : public Mamba1Kernels {
 public:
  void decay_rates(Index, const float*, float*) override {}
  void scan(const Mamba1Call&) override {}
  void gate_backward(const Mamba1Call&, const Mamba1Gradients&) override {}
  void scan_backward(const Mamba1Call&, const Mamba1Gradients&) override {}
  void conv_backward(const Mamba1Call&, const Mamba1Gradients&) override {}
};

class DryMamba2 final : public Mamba2Kernels {
 public:
  void scan(const Mamba2Call&) override {}
  void gate_backward(const Mamba2Call&, const Mamba2Gradients&) override {}
  void scan_backward(const Mamba2Call&, const Mamba2Gradients&) override {}
  void conv_backward(const Mamba2Call&, const Mamba2Gradients&) override {}
};

class DryMamba3 final : public Mamba3Kernels, public Mamba3Products {
 public:
  explicit DryMamba3(const Mamba3Kernels& real) : head_start_size_(real.head_start_size()) {}

  Index head_start_size() const override { return head_start_size_; }
  void prepare_tokens(const Mamba3Call&) override {}
  void accumulate_angles(const Mamba3Call&) override {}
  void rotate(const Mamba3Call&) override {}
  void weigh(const Mamba3Call&) override {}
  void scan(const Mamba3Call&) override {}
  void gate_backward(const Mamba3Call&, const Mamba3Gradients&) override {}
  void scan_backward(const Mamba3Call&, const Mamba3Gradients&) override {}
  void rotate_backward(const Mamba3Call&, const Mamba3Gradients&) override {}
  void tokens_backward(const Mamba3Call&, const Mamba3Gradients&) override {}
  void scan_backward_products(const Mamba3Call&, const Mamba3Gradients&) override {}

 private:
  Index head_start_size_;
};

class DryRun final : public DryExecutor {
 public:
  explicit DryRun(Executor& real) : real_(real), linear_(make_dry_linear(real.linear())), mamba3_(real.mamba3()) {}

  std::string name() const override { return real_.name(); }
  std::string instruction_set() const override { return real_.instruction_set(); }
  int threads() const override { return real_.threads(); }
  NumericMode numeric_mode() const override { return real_.numeric_mode(); }

  Memory& memory() override { return memory_; }
  DryMemory& dry_memory() override { return memory_; }
  std::uint64_t prepared_bytes() const override { return linear_->total() + fixed15_.total(); }

  ElementwiseKernels& elementwise() override { return elementwise_; }
  LinearKernels& linear() override { return *linear_; }
  Fixed15Kernels& fixed15() override { return fixed15_; }
  NormKernels& norm() override { return norm_; }
  EmbeddingKernels& embedding() override { return embedding_; }
  RandomKernels& random() override { return random_; }
  LossKernels& loss() override { return loss_; }
  OptimizerKernels& optimizer() override { return optimizer_; }
  ConvKernels& conv() override { return conv_; }
  RopeKernels& rope() override { return rope_; }
  AttentionKernels& attention() override { return attention_; }
  Mamba1Kernels& mamba1() override { return mamba1_; }
  Mamba2Kernels& mamba2() override { return mamba2_; }
  Mamba3Kernels& mamba3() override { return mamba3_; }

 private:
  Executor& real_;
  DryMemory memory_;
  DryElementwise elementwise_;
  std::unique_ptr<DryLinear> linear_;
  DryFixed15 fixed15_;
  DryNorm norm_;
  DryEmbedding embedding_;
  DryRandom random_;
  DryLoss loss_;
  DryOptimizer optimizer_;
  DryConv conv_;
  DryRope rope_;
  DryAttention attention_;
  DryMamba1 mamba1_;
  DryMamba2 mamba2_;
  DryMamba3 mamba3_;
};

}  // namespace

void* DryMemory::allocate(std::size_t bytes) {
  const std::uintptr_t size = std::max<std::uintptr_t>(1, (bytes + kAlignment - 1) / kAlignment) * kAlignment;
  const std::uintptr_t address = next_;
  next_ += size;
  sizes_.emplace(address, bytes);
  live_ += bytes;
  peak_ = std::max(peak_, live_);
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

void DryMemory::release(void* pointer) noexcept {
  const auto found = sizes_.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (found == sizes_.end()) return;
  live_ -= found->second;
  sizes_.erase(found);
}

void DryMemory::copy_to_host(void* host, const void*, std::size_t bytes) {
  if (bytes > 0) std::memset(host, 0, bytes);
}

std::unique_ptr<DryExecutor> make_dry_executor(Executor& real) { return std::make_unique<DryRun>(real); }

}  // namespace samba
