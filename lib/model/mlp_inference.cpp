#include "samba/model/mlp_inference.h"

#include <algorithm>
#include <cmath>

#include "samba/core/float_environment.h"
#include "samba/numerics/generator.h"

namespace samba {

namespace {

// weight1 and weight2 expanded where they are packed; the biases stay float32 arrays.
std::vector<float> expanded_values(const ConstWeightMap& weights) {
  ArrayMap expanded;
  ConstWeightMap arrays = weights;
  for (const char* name : {"weight1", "weight2"}) {
    const auto found = arrays.find(name);
    if (found == arrays.end() || !found->second.is_packed()) continue;
    const Array& values = expanded.emplace(name, expand(found->second)).first->second;
    found->second = values.view();
  }
  return flat_mlp_arrays(arrays);
}

}  // namespace

MlpInference::MlpInference(Executor& executor, const ConstWeightMap& weights)
    : executor_(executor),
      format_(samba::weight_format(weights)),
      values_(expanded_values(weights)),
      network_(executor),
      parameters_(executor.memory(), kMlpParameters),
      x_(executor.memory(), kMlpMostRows * kMlpFeatures) {
  parameters_.upload(values_.data());
}

Array MlpInference::predict_logits(const ConstArray& x) {
  const FloatScope float_scope;
  const Index rows = check_mlp_input(x);
  executor_.memory().copy_to_device(x_.data(), x.data, static_cast<std::size_t>(rows * kMlpFeatures) * sizeof(float));
  const float* device = network_.forward(rows, parameters_.data(), x_.data());
  Array logits = Array::zeros({rows, kMlpClasses});
  executor_.memory().copy_to_host(logits.data(), device, logits.byte_size());
  return logits;
}

Array MlpInference::predict_logits_sessions(std::span<const ConstArray> batches) {
  const FloatScope float_scope;
  return joined_logits(batches, [this](const ConstArray& batch) { return predict_logits(batch); });
}

ArrayMap MlpInference::weights() const { return mlp_arrays(values_); }

std::int32_t predicted_class(const Array& logits, std::size_t row) {
  const auto classes =
      logits.floats().subspan(row * static_cast<std::size_t>(kMlpClasses), static_cast<std::size_t>(kMlpClasses));
  return static_cast<std::int32_t>(std::max_element(classes.begin(), classes.end()) - classes.begin());
}

std::vector<float> draw_mlp_values(std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(kMlpParameters));
  Generator generator(seed);
  Index fan_in = 0;
  for (const MlpTensor& tensor : mlp_tensors()) {
    const std::span<float> part =
        std::span(values).subspan(static_cast<std::size_t>(tensor.offset), static_cast<std::size_t>(tensor.size));
    if (tensor.shape.size() == 2) {
      fan_in = tensor.shape[1];
      generator.kaiming_uniform(part, fan_in);
    } else {  // the bias of the weight before it
      const double bound = 1.0 / std::sqrt(static_cast<double>(fan_in));
      generator.uniform(part, -bound, bound);
    }
  }
  return values;
}

}  // namespace samba
