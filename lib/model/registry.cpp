#include "samba/model/registry.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "samba/core/error.h"

namespace samba {

Registry::Registry(const StackConfig& config) {
  add("embed.weight", {config.vocab, config.d_model});
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    layer_first_.push_back(tensors_.size());
    const std::string prefix = "layers." + std::to_string(i) + ".";
    for (WeightSpec& spec : layer_weight_specs(config, config.layers[i]))
      add(prefix + spec.name, std::move(spec.shape));
  }
  layer_first_.push_back(tensors_.size());
  add("norm_f.weight", {config.d_model});
  if (config.final_norm_bias) add("norm_f.bias", {config.d_model});
  if (!config.tie_embeddings) {
    head_ = tensors_.size();
    add("lm_head.weight", {config.vocab, config.d_model});
  }
}

void Registry::add(std::string name, Shape shape) {
  Index size = 1;
  for (const Index length : shape) {
    if (length > kMostElements || size * length > kMostElements) {
      refuse_value("the tensor " + name + " would have more than " + std::to_string(kMostElements) +
                   " elements: " + shape_text(shape));
    }
    size *= length;
  }
  if (size > kMostParameters - total_) {
    refuse_value("the stack would have more than " + std::to_string(kMostParameters) + " parameters at " + name + " " +
                 shape_text(shape));
  }
  tensors_.push_back({std::move(name), std::move(shape), total_, size});
  total_ += size;
}

Index Registry::find(std::string_view name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const ParameterTensor& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? -1 : found - tensors_.begin();
}

std::vector<Index> Registry::sizes() const {
  std::vector<Index> sizes;
  for (const ParameterTensor& tensor : tensors_) sizes.push_back(tensor.size);
  return sizes;
}

std::string Registry::element_name(Index flat) const {
  const auto after = std::upper_bound(tensors_.begin(), tensors_.end(), flat,
                                      [](Index value, const ParameterTensor& tensor) { return value < tensor.offset; });
  const ParameterTensor& tensor = *std::prev(after);
  return tensor.name + "[" + std::to_string(flat - tensor.offset) + "]";
}

nlohmann::json Registry::to_json() const {
  nlohmann::json list = nlohmann::json::array();
  for (const ParameterTensor& tensor : tensors_) {
    list.push_back({{"name", tensor.name}, {"offset", tensor.offset}, {"shape", tensor.shape}, {"size", tensor.size}});
  }
  return list;
}

}  // namespace samba
