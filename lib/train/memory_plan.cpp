#include "samba/train/memory_plan.h"

#include <algorithm>
#include <vector>

#include "samba/kernels/dry_executor.h"
#include "samba/model/samba_stack.h"
#include "samba/model/weight_source.h"
#include "samba/train/trainer.h"

namespace samba {

namespace {

constexpr Index kLongestBlock = 256;  // values of a block of any format
// More than any call takes: then its scratch memory lies in one block, without gaps.
constexpr std::size_t kEnough = std::size_t{1} << 44;

// Weights of the right shapes and formats that are never read.
class ShapesOnly final : public WeightSource {
 public:
  ShapesOnly(const Registry& registry, const InferenceCall& call) : registry_(registry), call_(call) {}
  WeightFormat format() const override { return call_.format; }
  ConstWeight open(std::size_t index) override {
    const Shape& shape = registry_.tensors()[index].shape;
    const WeightFormat format = call_.formats.empty() ? call_.format : call_.formats[index];
    const bool cells = format == WeightFormat::bfloat16 || format == WeightFormat::int8;
    const bool fits = shape.size() == 2 && (cells || !call_.formats.empty() || shape[1] % kLongestBlock == 0);
    if (format == WeightFormat::float32 || !fits) return ConstArray{DType::float32, shape, nullptr};
    ConstPackedWeight packed;
    packed.format = format;
    packed.rows = shape[0];
    packed.columns = shape[1];
    return packed;
  }
  void release(std::size_t) override {}

 private:
  const Registry& registry_;
  const InferenceCall& call_;
};

// The scratch memory of calls: that of the stack, and what they allocate beside it.
template <class Calls>
std::uint64_t workspace_of(DryMemory& memory, SambaStack& stack, Calls&& calls) {
  stack.reserve_workspace(kEnough);
  const std::uint64_t before = memory.live();
  memory.start_peak();
  calls();
  return stack.workspace_bytes() + (memory.peak() - before);
}

}  // namespace

MemoryPlan plan_inference(Executor& executor, const StackConfig& config, const InferenceCall& call) {
  const std::unique_ptr<DryExecutor> dry = make_dry_executor(executor);
  DryMemory& memory = dry->dry_memory();
  const Registry registry(config);
  ShapesOnly weights(registry, call);
  SambaStack stack(*dry, config, weights);
  MemoryPlan plan;
  plan.weights = memory.live();
  plan.panels = dry->prepared_bytes();
  const Index positions = std::min(call.positions, position_limit(config));
  const auto state = stack.allocate_state(call.batch, positions);
  plan.states = memory.live() - plan.weights;
  plan.workspace = workspace_of(memory, stack, [&] {
    std::vector<float> logits(static_cast<std::size_t>(call.batch * config.vocab));
    for (Index at = 0; at < positions;) {
      const Index length = std::min(call.chunk, positions - at);
      const std::vector<std::int32_t> ids(static_cast<std::size_t>(call.batch * length));
      stack.prefill(ids, length, *state, logits);
      at += length;
    }
  });
  return plan;
}

MemoryPlan plan_training(Executor& executor, const StackConfig& config, const OptimizerSettings& settings, Index batch,
                         Index length, std::optional<Index> activation_budget) {
  const std::unique_ptr<DryExecutor> dry = make_dry_executor(executor);
  DryMemory& memory = dry->dry_memory();
  auto stack = std::make_unique<SambaStack>(*dry, config);
  MemoryPlan plan;
  plan.weights = memory.live();
  plan.panels = dry->prepared_bytes();
  stack->set_activation_budget(activation_budget);
  SambaTrainer trainer(std::move(stack), Generator(0), settings);
  const auto size = static_cast<std::uint64_t>(trainer.stack().registry().total()) * sizeof(float);
  plan.moments = (settings.kind == OptimizerKind::sgd ? 1 : 2) * size;
  plan.gradients = memory.live() - plan.weights - plan.moments;
  plan.workspace = workspace_of(memory, trainer.stack(), [&] {
    const Array ids = Array(DType::int32, {batch, length});
    trainer.train_step(ids, ids);
  });
  return plan;
}

}  // namespace samba
