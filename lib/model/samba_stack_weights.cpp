// How the weights of a stack come in, are laid out, and are given out again.
#include <algorithm>

#include "samba/core/error.h"
#include "samba/core/resident.h"
#include "samba/core/sha256.h"
#include "samba/model/samba_stack.h"
#include "samba/model/samba_stack_impl.h"
#include "samba/numerics/float32.h"

namespace samba {

namespace {

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
  // A head of its own comes first where it may: at the end both forms of it would lie beside all the rest.
  const bool head_first = registry.head() == 0 || !source.is_stream();
  if (head_first) {
    take_matrix_of_head(registry.head());
    release();
  }
  if (registry.head() != 0) {
    take(0, true);
    release();
  }
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
    if (j != registry.head()) {
      take(j, true);
    } else if (!head_first) {
      take_matrix_of_head(j);
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

}  // namespace samba
