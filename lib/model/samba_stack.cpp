#include "samba/model/samba_stack.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "samba/blocks/mamba1/mamba1_block.h"
#include "samba/blocks/mamba2/mamba2_block.h"
#include "samba/blocks/mamba3/mamba3_block.h"
#include "samba/blocks/transformer/transformer_block.h"
#include "samba/core/error.h"
#include "samba/core/sha256.h"
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
      return std::make_unique<Mamba3Block>(executor, config.d_model);
  }
  throw Error(ErrorKind::internal, "unknown block kind");
}

std::vector<std::unique_ptr<Block>> make_blocks(Executor& executor, const StackConfig& config) {
  std::vector<std::unique_ptr<Block>> blocks;
  RotaryTables tables;
  for (const LayerConfig& layer : config.layers) blocks.push_back(make_layer(executor, config, layer, tables));
  return blocks;
}

std::string quoted_list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// `first`: the flat index of the first value.
void check_finite(const std::string& name, std::span<const float> values, Index first) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (is_finite(values[i])) continue;
    throw Error(ErrorKind::value, kNonFiniteClass,
                "weight " + name + ": " + (is_nan(values[i]) ? "NaN" : "infinity") + " at flat index " +
                    std::to_string(first + static_cast<Index>(i)));
  }
}

// Names, dtypes, shapes and finiteness of a full set of weights.
void check_weights(const Registry& registry, const ConstWeightMap& weights) {
  std::vector<std::string> missing, unknown;
  for (const ParameterTensor& tensor : registry.tensors()) {
    if (!weights.contains(tensor.name)) missing.push_back(tensor.name);
  }
  for (const auto& [name, weight] : weights) {
    if (registry.find(name) < 0) unknown.push_back(name);
  }
  if (!missing.empty() || !unknown.empty()) {
    refuse_value("weights:" + (missing.empty() ? "" : " missing " + quoted_list(missing)) +
                 (missing.empty() || unknown.empty() ? "" : ";") +
                 (unknown.empty() ? "" : " unknown " + quoted_list(unknown)));
  }
  for (const ParameterTensor& tensor : registry.tensors()) {
    const ConstWeight& weight = weights.at(tensor.name);
    if (!weight.is_packed() && weight.array().dtype != DType::float32) {
      refuse_type("weight " + tensor.name + " must be float32, got " + std::string(dtype_name(weight.array().dtype)));
    }
    if (weight.shape() != tensor.shape) {
      refuse_value("weight " + tensor.name + " must have the shape " + shape_text(tensor.shape) + ", got " +
                   shape_text(weight.shape()));
    }
    if (!weight.is_packed()) {
      check_finite(tensor.name, {weight.array().floats(), static_cast<std::size_t>(tensor.size)}, 0);
      continue;
    }
    const ConstPackedWeight& packed = weight.packed();
    std::vector<float> row(static_cast<std::size_t>(packed.columns));
    for (Index i = 0; i < packed.rows; ++i) {
      expand(packed_rows(packed, i, i + 1), row);
      check_finite(tensor.name, row, i * packed.columns);
    }
  }
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

SambaStack::Impl::Impl(Executor& executor_, const StackConfig& config_, Use use_, bool packed)
    : executor(executor_),
      config(checked_use(config_, use_)),
      registry(config_),
      use(use_),
      parameters(executor_.memory(), packed ? 0 : registry.total()),
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

SambaStack::SambaStack(Executor& executor, const StackConfig& config, Generator& generator, Use use)
    : impl_(std::make_unique<Impl>(executor, config, use)) {
  draw_initial_values(executor, config, impl_->registry, generator, impl_->parameters.data());
  impl_->bind();
}

SambaStack::SambaStack(Executor& executor, const StackConfig& config, const ConstWeightMap& weights, Use use)
    : impl_(std::make_unique<Impl>(executor, config, use, samba::weight_format(weights) != WeightFormat::float32)) {
  load_weights(weights);
}

SambaStack::SambaStack(Executor& executor, const StackConfig& config, Use use)
    : impl_(std::make_unique<Impl>(executor, config, use)) {
  impl_->parameters.zero();
  impl_->bind();
}

SambaStack::~SambaStack() = default;

Executor& SambaStack::executor() const { return impl_->executor; }
const StackConfig& SambaStack::config() const { return impl_->config; }
const Registry& SambaStack::registry() const { return impl_->registry; }
SambaStack::Use SambaStack::use() const { return impl_->use; }

void SambaStack::load_weights(const ConstWeightMap& weights) {
  Impl& impl = *impl_;
  const Impl::InUse guard(impl);
  const WeightFormat format = samba::weight_format(weights);
  if (format != WeightFormat::float32 && impl.use == Use::training) {
    refuse_unsupported("weights are packed as " + std::string(weight_format_name(format)) +
                       ": a stack that trains takes float32 weights; expand them, or make the stack for inference");
  }
  check_weights(impl.registry, weights);
  Memory& memory = impl.executor.memory();
  const bool bound = impl.head != nullptr && impl.stored.empty() && format == WeightFormat::float32;
  impl.stored.clear();
  if (format != WeightFormat::float32) {
    impl.parameters = DeviceArray<float>();
    for (const ParameterTensor& tensor : impl.registry.tensors()) {
      impl.stored.emplace_back(memory, weights.at(tensor.name));
    }
    return impl.bind();
  }
  if (impl.parameters.size() == 0) impl.parameters = DeviceArray<float>(memory, impl.registry.total());
  for (const ParameterTensor& tensor : impl.registry.tensors()) {
    memory.copy_to_device(impl.parameters.data() + tensor.offset, weights.at(tensor.name).array().data,
                          static_cast<std::size_t>(tensor.size) * sizeof(float));
  }
  if (bound) {
    impl.refresh();
  } else {
    impl.bind();
  }
}

WeightFormat SambaStack::weight_format() const {
  std::map<WeightFormat, Index> values;
  for (const DeviceWeight& weight : impl_->stored) {
    if (weight.format() != WeightFormat::float32) values[weight.format()] += weight.size();
  }
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  return values.empty() ? WeightFormat::float32 : std::max_element(values.begin(), values.end(), fewer)->first;
}

WeightMap SambaStack::stored_weights() const {
  WeightMap weights;
  if (impl_->stored.empty()) {
    for (auto& [name, values] : this->weights()) weights.emplace(name, std::move(values));
    return weights;
  }
  for (std::size_t i = 0; i < impl_->stored.size(); ++i) {
    weights.emplace(impl_->registry.tensors()[i].name, impl_->stored[i].download());
  }
  return weights;
}

ArrayMap SambaStack::weights() const {
  if (!impl_->stored.empty()) return expand(stored_weights());
  ArrayMap weights;
  for (const ParameterTensor& tensor : impl_->registry.tensors()) {
    Array array = Array::zeros(tensor.shape);
    impl_->executor.memory().copy_to_host(array.data(), impl_->parameters.data() + tensor.offset, array.byte_size());
    weights.emplace(tensor.name, std::move(array));
  }
  return weights;
}

Array SambaStack::parameters() const {
  Array flat = Array::zeros({impl_->registry.total()});
  if (impl_->stored.empty()) {
    impl_->parameters.download(flat.floats().data());
    return flat;
  }
  for (std::size_t i = 0; i < impl_->stored.size(); ++i) {
    const Array values = expand(impl_->stored[i].download());
    std::copy(values.floats().begin(), values.floats().end(),
              flat.floats().begin() + impl_->registry.tensors()[i].offset);
  }
  return flat;
}

std::string SambaStack::parameters_sha256() const {
  const Array flat = parameters();
  return sha256_hex(flat.data(), flat.byte_size());
}

float* SambaStack::Impl::flat_parameters() {
  if (!stored.empty()) refuse_unsupported("a stack of packed weights has no flat buffer of parameters");
  return parameters.data();
}

const float* SambaStack::device_parameters() const { return impl_->flat_parameters(); }
float* SambaStack::mutable_device_parameters() { return impl_->flat_parameters(); }
void SambaStack::parameters_changed() {
  const Impl::InUse guard(*impl_);
  impl_->refresh();
}

void SambaStack::set_stage_recorder(StageRecorder* recorder) { impl_->recorder = recorder; }

// ---- helpers ----

void SambaStack::Impl::refuse_if_inference(const char* call) const {
  if (use == Use::inference) refuse_unsupported(std::string(call) + ": inference is forward only");
}

void SambaStack::Impl::require_finite(const char* name, Index count, const float* device) {
  const Index index = executor.elementwise().first_non_finite(count, device);
  if (index < 0) return;
  float value = 0.0F;
  executor.memory().copy_to_host(&value, device + index, sizeof value);
  throw Error(ErrorKind::value, kNonFiniteClass,
              std::string("non-finite ") + name + " at flat index " + std::to_string(index) + ": " +
                  (is_nan(value) ? "NaN" : "infinity"));
}

void SambaStack::Impl::record(std::string_view name, std::initializer_list<Index> shape, const float* device) {
  if (recorder != nullptr) recorder->record(name, Shape(shape), device);
}

}  // namespace samba
