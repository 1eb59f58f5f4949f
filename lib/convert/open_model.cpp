#include "samba/convert/open_model.h"

#include <algorithm>
#include <cstring>

#include "samba/core/error.h"
#include "samba/formats/stack_weight.h"
#include "samba/numerics/float32.h"

namespace samba {

namespace {

[[noreturn]] void refuse_non_finite(const ModelTensor& tensor, Index element) {
  refuse_corrupt("weights_finite",
                 tensor.source + ": element " + std::to_string(element) + " of " + tensor.name + " is not finite");
}

// A float32 tensor in its place in the flat buffer.
void upload(const ModelTensor& tensor, Memory& memory, float* device) {
  const Weight loaded = tensor.view ? Weight() : tensor.load();
  const ConstArray array = tensor.view ? tensor.view->array() : loaded.array().view();
  for (Index i = 0; i < array.size(); ++i) {
    if (!is_finite(array.floats()[i])) refuse_non_finite(tensor, i);
  }
  memory.copy_to_device(device, array.data, static_cast<std::size_t>(array.size()) * sizeof(float));
}

}  // namespace

WeightFormat weight_format(const OpenModel& model) {
  WeightFormat format = WeightFormat::float32;
  for (const ModelTensor& tensor : model.tensors) {
    if (tensor.format == WeightFormat::float32 || tensor.format == format) continue;
    if (format != WeightFormat::float32) {
      refuse_value("weights mix formats: " + std::string(weight_format_name(format)) + " and " +
                   std::string(weight_format_name(tensor.format)) + " (" + tensor.source + ")");
    }
    format = tensor.format;
  }
  return format;
}

Array floats_of(const ModelTensor& tensor) {
  if (tensor.view) return expand(*tensor.view);
  return expand(tensor.load().view());
}

StoredModel stored_model(const OpenModel& model) {
  StoredModel stored;
  stored.form = model.form;
  stored.file_bytes = model.file_bytes;
  stored.description = model.description;
  stored.state = model.state;
  stored.trainable = model.trainable;
  for (const ModelTensor& tensor : model.tensors) {
    Weight weight = tensor.load();
    stored.tensors.push_back(describe_weight(tensor.name, weight));
    stored.weights.emplace(tensor.name, std::move(weight));
  }
  for (const ModelTensor& moment : model.moments) {
    stored.moments.emplace(moment.name, moment.load().array());
  }
  return stored;
}

std::unique_ptr<SambaStack> load_for_inference(Executor& executor, const OpenModel& model) {
  const StackConfig& config = model.state.config;
  const bool packed = std::any_of(model.tensors.begin(), model.tensors.end(), [](const ModelTensor& tensor) {
    return tensor.format != WeightFormat::float32 || (tensor.view && tensor.view->is_packed());
  });
  if (!packed) {
    auto stack = std::make_unique<SambaStack>(executor, config, SambaStack::Use::inference);
    for (std::size_t i = 0; i < model.tensors.size(); ++i) {
      upload(model.tensors[i], executor.memory(),
             stack->mutable_device_parameters() + stack->registry().tensors()[i].offset);
    }
    stack->parameters_changed();
    return stack;
  }
  ConstWeightMap views;
  WeightMap loaded;
  for (const ModelTensor& tensor : model.tensors) {
    if (tensor.view) {
      views.emplace(tensor.name, *tensor.view);
    } else {
      views.emplace(tensor.name, loaded.emplace(tensor.name, tensor.load()).first->second.view());
    }
  }
  return std::make_unique<SambaStack>(executor, config, views, SambaStack::Use::inference);
}

}  // namespace samba
