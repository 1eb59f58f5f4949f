#include "samba/model/samba_stack.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "samba/blocks/mamba1/mamba1_block.h"
#include "samba/blocks/mamba2/mamba2_block.h"
#include "samba/blocks/mamba3/mamba3_block.h"
#include "samba/blocks/transformer/transformer_block.h"
#include "samba/core/error.h"
#include "samba/core/resident.h"
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

// The views of a full set of checked weights.
class NamedWeights final : public WeightSource {
 public:
  NamedWeights(const Registry& registry, const ConstWeightMap& weights) : registry_(registry), weights_(weights) {}
  WeightFormat format() const override { return samba::weight_format(weights_); }
  ConstWeight open(std::size_t index) override { return weights_.at(registry_.tensors()[index].name); }
  void release(std::size_t) override {}

 private:
  const Registry& registry_;
  const ConstWeightMap& weights_;
};

// Drawn values, or zeros without a generator.
class DrawnWeights final : public WeightSource {
 public:
  DrawnWeights(Executor& executor, const StackConfig& config, const Registry& registry, Generator* generator)
      : executor_(executor), registry_(registry) {
    if (generator != nullptr) values_.emplace(config, registry, *generator);
  }
  WeightFormat format() const override { return WeightFormat::float32; }
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

// Host memory as a kernel of a host executor reads it.
WeightView host_view(const ConstWeight& weight) {
  return weight.is_packed() ? WeightView(weight.packed()) : WeightView(weight.array().floats());
}

std::unique_ptr<PreparedWeight> prepare_matrix(LinearKernels& linear, const Shape& shape, const WeightView& view) {
  return view.is_packed() ? linear.prepare(view.packed()) : linear.prepare(shape[0], shape[1], view.values());
}

}  // namespace

// Before the first page is taken: a system that gives addresses without memory behind them would end the process.
void SambaStack::Impl::require_memory_for_inference() const {
  if (!executor.memory().is_host()) return;
  std::uint64_t bytes = 0;
  for (const ParameterTensor& tensor : registry.tensors()) {
    const bool matrix = tensor.shape.size() == 2;
    bytes += matrix ? executor.linear().prepared_bytes(format, tensor.shape[0], tensor.shape[1])
                    : static_cast<std::uint64_t>(tensor.size) * sizeof(float);
  }
  require_memory(bytes, "the model of " + std::to_string(registry.total()) + " parameters");
}

void SambaStack::Impl::load(WeightSource& source) {
  stored.clear();
  stored.resize(registry.tensors().size());
  format = source.format();
  require_memory_for_inference();
  std::vector<std::size_t> open;
  std::vector<DeviceWeight> passing;  // uploads of what is laid out and not kept
  passing.reserve(registry.tensors().size());
  const auto take = [&](std::size_t index, bool keep) -> WeightView {
    const ConstWeight weight = source.open(index);
    open.push_back(index);
    // Rows of blocks are read where they lie, by products too.
    const bool stays = keep || (weight.is_packed() && weight.packed().blocks != nullptr);
    if (!stays && executor.memory().is_host()) return host_view(weight);
    DeviceWeight& device = stays ? stored[index] : passing.emplace_back();
    device = DeviceWeight(executor.memory(), weight);
    return device.view();
  };
  const auto take_matrix_of_head = [&](std::size_t index) {
    head = prepare_matrix(executor.linear(), registry.tensors()[index].shape, take(index, false));
  };
  const auto release = [&] {
    executor.memory().synchronize();
    passing.clear();
    for (const std::size_t index : open) source.release(index);
    open.clear();
  };
  head.reset();
  if (registry.head() == 0) {
    take_matrix_of_head(0);
  } else {
    take(0, true);
  }
  release();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::size_t first = registry.layer_first(i);
    std::vector<WeightView> weights;
    for (std::size_t j = first; j < registry.layer_first(i + 1); ++j) {
      weights.push_back(take(j, !blocks[i]->lays_out(j - first)));
    }
    blocks[i]->bind_weights(weights);
    release();
  }
  for (std::size_t j = registry.final_norm(); j < registry.tensors().size(); ++j) {
    if (j == registry.head()) {
      take_matrix_of_head(j);
    } else {
      take(j, true);
    }
    release();
  }
}

const PreparedWeight& SambaStack::Impl::laid_out(std::size_t index) const {
  if (index == registry.head()) return *head;
  std::size_t layer = 0;
  while (registry.layer_first(layer + 1) <= index) ++layer;
  return *blocks[layer]->laid_out(index - registry.layer_first(layer));
}

Weight SambaStack::Impl::host_weight(std::size_t index) const {
  if (use == Use::inference) {
    return is_stored(index) ? stored[index].download() : executor.linear().stored(laid_out(index));
  }
  const ParameterTensor& tensor = registry.tensors()[index];
  Array array = Array::zeros(tensor.shape);
  executor.memory().copy_to_host(array.data(), parameters.data() + tensor.offset, array.byte_size());
  return array;
}

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

void SambaStack::load_weights(const ConstWeightMap& weights) {
  Impl& impl = *impl_;
  const Impl::InUse guard(impl);
  const WeightFormat format = samba::weight_format(weights);
  if (format != WeightFormat::float32 && impl.use == Use::training) {
    refuse_unsupported("weights are packed as " + std::string(weight_format_name(format)) +
                       ": a stack that trains takes float32 weights; expand them, or make the stack for inference");
  }
  check_weights(impl.registry, weights);
  if (impl.use == Use::inference) {
    NamedWeights source(impl.registry, weights);
    return impl.load(source);
  }
  for (const ParameterTensor& tensor : impl.registry.tensors()) {
    impl.executor.memory().copy_to_device(impl.parameters.data() + tensor.offset, weights.at(tensor.name).array().data,
                                          static_cast<std::size_t>(tensor.size) * sizeof(float));
  }
  if (impl.head != nullptr) {
    impl.refresh();
  } else {
    impl.bind();
  }
}

WeightFormat SambaStack::weight_format() const { return impl_->format; }

WeightMap SambaStack::stored_weights() const {
  WeightMap weights;
  for (std::size_t i = 0; i < impl_->registry.tensors().size(); ++i) {
    weights.emplace(impl_->registry.tensors()[i].name, impl_->host_weight(i));
  }
  return weights;
}

ArrayMap SambaStack::weights() const {
  ArrayMap weights;
  for (std::size_t i = 0; i < impl_->registry.tensors().size(); ++i) {
    weights.emplace(impl_->registry.tensors()[i].name, expand(impl_->host_weight(i).view()));
  }
  return weights;
}

Array SambaStack::parameters() const {
  Array flat = Array::zeros({impl_->registry.total()});
  for (std::size_t i = 0; i < impl_->registry.tensors().size(); ++i) {
    const Array values = expand(impl_->host_weight(i).view());
    std::copy(values.floats().begin(), values.floats().end(),
              flat.floats().begin() + impl_->registry.tensors()[i].offset);
  }
  return flat;
}

std::string SambaStack::parameters_sha256() const {
  Sha256 hash;
  for (std::size_t i = 0; i < impl_->registry.tensors().size(); ++i) {
    const Array values = expand(impl_->host_weight(i).view());
    hash.update(values.data(), values.byte_size());
  }
  return hash.finish_hex();
}

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
