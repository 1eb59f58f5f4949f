#include "samba/model/samba_stack.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "samba/blocks/mamba1/mamba1_block.h"
#include "samba/blocks/mamba2/mamba2_block.h"
#include "samba/blocks/mamba3/mamba3_block.h"
#include "samba/blocks/transformer/transformer_block.h"
#include "samba/core/error.h"
#include "samba/model/initial_values.h"
#include "samba/model/samba_stack_impl.h"
#include "samba/numerics/float32.h"
#include "samba/numerics/generator.h"

namespace samba {

namespace {

// The rotary tables of a stack: transformer layers of equal rotary options share one.
class RotaryTables {
 public:
  std::shared_ptr<RotaryTable> find(const TransformerOptions& options) const {
    for (const auto& [of, table] : tables_) {
      if (of.rotary_dim() == options.rotary_dim() && of.rope_theta == options.rope_theta &&
          of.rope_scaling == options.rope_scaling) {
        return table;
      }
    }
    return nullptr;
  }
  void add(const TransformerBlock& block) { tables_.emplace_back(block.options(), block.rotary()); }

 private:
  std::vector<std::pair<TransformerOptions, std::shared_ptr<RotaryTable>>> tables_;
};

std::unique_ptr<Block> make_layer(Executor& executor, const StackConfig& config, const LayerConfig& layer,
                                  RotaryTables& tables) {
  switch (layer.kind) {
    case BlockKind::transformer: {
      auto block = std::make_unique<TransformerBlock>(executor, layer.transformer, tables.find(layer.transformer));
      tables.add(*block);
      return block;
    }
    case BlockKind::mamba1:
      return std::make_unique<Mamba1Block>(executor, config.d_model);
    case BlockKind::mamba2:
      return std::make_unique<Mamba2Block>(executor, config.d_model, layer.mamba2);
    case BlockKind::mamba3:
      return std::make_unique<Mamba3Block>(executor, config.d_model,
                                           config.profile == StackProfile::fp32_v2
                                               ? Mamba3Block::Gradient::matrix_products
                                               : Mamba3Block::Gradient::chains);
  }
  throw Error(ErrorKind::internal, "unknown block kind");
}

std::vector<std::unique_ptr<Block>> make_blocks(Executor& executor, const StackConfig& config) {
  std::vector<std::unique_ptr<Block>> blocks;
  RotaryTables tables;
  for (const LayerConfig& layer : config.layers) blocks.push_back(make_layer(executor, config, layer, tables));
  return blocks;
}

}  // namespace

// ---- state ----

std::unique_ptr<SambaState> SambaStack::allocate_state(Index batch_size, Index max_tokens) {
  if (batch_size < 1) refuse_value("batch_size must be at least 1, got " + std::to_string(batch_size));
  if (max_tokens < 1) refuse_value("max_tokens must be at least 1, got " + std::to_string(max_tokens));
  std::unique_ptr<SambaState> state(new SambaState);
  state->batch_size_ = batch_size;
  state->max_tokens_ = max_tokens;
  state->config_ = impl_->config;
  state->numeric_mode_ = impl_->executor.numeric_mode();
  for (const auto& block : impl_->blocks) state->layers_.push_back(block->allocate_state(batch_size, max_tokens));
  return state;
}

// ---- construction and parameters ----

namespace {

const StackConfig& checked_use(const StackConfig& config, SambaStack::Use use) {
  const auto reason = inference_only_reason(config);
  if (use == SambaStack::Use::training && reason) refuse_unsupported(reason->pointer + ": " + reason->text);
  return config;
}

}  // namespace

SambaStack::Impl::Impl(Executor& executor_, const StackConfig& config_, Use use_)
    : executor(executor_),
      config(checked_use(config_, use_)),
      registry(config_),
      use(use_),
      parameters(executor_.memory(), use_ == Use::training ? registry.total() : 0),
      blocks(make_blocks(executor_, config_)),
      workspace(executor_.memory()) {
  if (config.final_norm == TransformerNorm::rmsnorm_offset) {
    const std::vector<float> values(static_cast<std::size_t>(config.d_model), 1.0F);
    ones = DeviceArray<float>(executor.memory(), config.d_model);
    ones.upload(values.data());
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto& specs = blocks[i]->weight_specs();
    const std::size_t first = registry.layer_first(i);
    bool equal = specs.size() == registry.layer_first(i + 1) - first;
    for (std::size_t j = 0; equal && j < specs.size(); ++j) {
      const ParameterTensor& tensor = registry.tensors()[first + j];
      equal = tensor.name.ends_with("." + specs[j].name) && tensor.shape == specs[j].shape;
    }
    if (!equal)
      throw Error(ErrorKind::internal, "the registry does not describe the block of layer " + std::to_string(i));
  }
}

void SambaStack::Impl::bind() {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    std::vector<WeightView> weights;
    for (std::size_t j = registry.layer_first(i); j < registry.layer_first(i + 1); ++j) weights.push_back(weight(j));
    blocks[i]->bind_weights(weights);
  }
  const WeightView matrix = weight(registry.head());
  head = matrix.is_packed() ? executor.linear().prepare(matrix.packed())
                            : executor.linear().prepare(config.vocab, config.d_model, matrix.values());
}

void SambaStack::Impl::refresh() {
  for (auto& block : blocks) block->weights_changed();
  executor.linear().refresh(*head, weight(registry.head()));
}

namespace {

// Drawn values, or zeros without a generator.
class DrawnWeights final : public WeightSource {
 public:
  DrawnWeights(Executor& executor, const StackConfig& config, const Registry& registry, Generator* generator)
      : executor_(executor), registry_(registry) {
    if (generator != nullptr) values_.emplace(config, registry, *generator);
  }
  WeightFormat format() const override { return WeightFormat::float32; }
  bool is_stream() const override { return true; }
  ConstWeight open(std::size_t index) override {
    const ParameterTensor& tensor = registry_.tensors()[index];
    Array& array = open_.emplace(index, Array::zeros(tensor.shape)).first->second;
    if (values_) {
      DeviceArray<float> device(executor_.memory(), tensor.size);
      values_->draw(executor_, index, device.data());
      device.download(array.floats().data());
    }
    return array;
  }
  void release(std::size_t index) override { open_.erase(index); }

 private:
  Executor& executor_;
  const Registry& registry_;
  std::optional<InitialValues> values_;
  std::map<std::size_t, Array> open_;
};

}  // namespace

SambaStack::SambaStack(Executor& executor, const StackConfig& config, Generator& generator, Use use)
    : impl_(std::make_unique<Impl>(executor, config, use)) {
  if (use == Use::inference) {
    DrawnWeights source(executor, config, impl_->registry, &generator);
    impl_->load(source);
  } else {
    draw_initial_values(executor, config, impl_->registry, generator, impl_->parameters.data());
    impl_->bind();
  }
}

SambaStack::SambaStack(Executor& executor, const StackConfig& config, WeightSource& weights)
    : impl_(std::make_unique<Impl>(executor, config, Use::inference)) {
  impl_->load(weights);
}

SambaStack::SambaStack(Executor& executor, const StackConfig& config, const ConstWeightMap& weights, Use use)
    : impl_(std::make_unique<Impl>(executor, config, use)) {
  load_weights(weights);
}

SambaStack::SambaStack(Executor& executor, const StackConfig& config, Use use)
    : impl_(std::make_unique<Impl>(executor, config, use)) {
  if (use == Use::inference) {
    DrawnWeights source(executor, config, impl_->registry, nullptr);
    impl_->load(source);
  } else {
    impl_->parameters.zero();
    impl_->bind();
  }
}

SambaStack::~SambaStack() = default;

Executor& SambaStack::executor() const { return impl_->executor; }
const StackConfig& SambaStack::config() const { return impl_->config; }
const Registry& SambaStack::registry() const { return impl_->registry; }
SambaStack::Use SambaStack::use() const { return impl_->use; }

std::size_t SambaStack::workspace_bytes() const { return impl_->workspace.peak_bytes(); }
void SambaStack::reserve_workspace(std::size_t bytes) { impl_->workspace.reserve(bytes); }

float* SambaStack::Impl::flat_parameters() {
  if (use == Use::inference) refuse_unsupported("a stack for inference has no flat buffer of parameters");
  return parameters.data();
}

const float* SambaStack::device_parameters() const { return impl_->flat_parameters(); }
float* SambaStack::mutable_device_parameters() { return impl_->flat_parameters(); }
void SambaStack::parameters_changed() {
  const Impl::InUse guard(*impl_);
  impl_->flat_parameters();
  impl_->refresh();
}

void SambaStack::set_stage_recorder(StageRecorder* recorder) { impl_->recorder = recorder; }

// ---- helpers ----

void SambaStack::Impl::refuse_if_inference(const char* call) const {
  if (use == Use::inference) refuse_unsupported(std::string(call) + ": inference is forward only");
}

void SambaStack::Impl::require_finite(const char* name, Index count, const float* device) {
  if (decode_step != nullptr && decode_step->checks_later(name, count, device)) return;
  const Index index = executor.elementwise().first_non_finite(count, device);
  if (index >= 0) refuse_non_finite(executor, name, index, device);
}

void SambaStack::Impl::record(std::string_view name, std::initializer_list<Index> shape, const float* device) {
  if (recorder != nullptr) recorder->record(name, Shape(shape), device);
}

}  // namespace samba
