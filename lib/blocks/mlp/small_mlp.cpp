#include "samba/blocks/mlp/small_mlp.h"

#include <cstring>

#include "samba/core/error.h"
#include "samba/numerics/float32.h"

namespace samba {

namespace {

constexpr Index kWeight1 = 0, kBias1 = 1, kWeight2 = 2, kBias2 = 3;

template <class Pointer>
Pointer part(Pointer flat, Index tensor) {
  return flat + mlp_tensors()[static_cast<std::size_t>(tensor)].offset;
}

bool all_finite(std::span<const float> values) {
  for (const float value : values) {
    if (!is_finite(value)) return false;
  }
  return true;
}

}  // namespace

const std::array<MlpTensor, 4>& mlp_tensors() {
  static const std::array<MlpTensor, 4> tensors = [] {
    std::array<MlpTensor, 4> made = {{{"weight1", {kMlpHidden, kMlpFeatures}},
                                      {"bias1", {kMlpHidden}},
                                      {"weight2", {kMlpClasses, kMlpHidden}},
                                      {"bias2", {kMlpClasses}}}};
    Index offset = 0;
    for (MlpTensor& tensor : made) {
      tensor.offset = offset;
      tensor.size = element_count(tensor.shape);
      offset += tensor.size;
    }
    return made;
  }();
  return tensors;
}

ArrayMap mlp_arrays(std::span<const float> flat) {
  ArrayMap arrays;
  for (const MlpTensor& tensor : mlp_tensors()) {
    const auto values = flat.subspan(static_cast<std::size_t>(tensor.offset), static_cast<std::size_t>(tensor.size));
    arrays.emplace(tensor.name, Array::from_floats(tensor.shape, values));
  }
  return arrays;
}

std::vector<float> flat_mlp_arrays(const ConstWeightMap& arrays, const std::string& noun) {
  std::vector<float> flat(static_cast<std::size_t>(kMlpParameters));
  for (const MlpTensor& tensor : mlp_tensors()) {
    const std::string name = tensor.name + (noun.empty() ? "" : " " + noun);
    const auto found = arrays.find(tensor.name);
    if (found == arrays.end()) refuse_value(name + " is missing; exactly weight1, bias1, weight2 and bias2 are taken");
    const ConstWeight& given = found->second;
    if (given.is_packed()) {
      refuse_type(name + " must be a float32 array, got packed " + std::string(weight_format_name(given.format())));
    }
    const ConstArray& array = given.array();
    if (array.dtype != DType::float32) {
      refuse_type(name + " must be a float32 array, got " + std::string(dtype_name(array.dtype)));
    }
    if (array.shape != tensor.shape) {
      refuse_value(name + " must have shape " + shape_text(tensor.shape) + ", got " + shape_text(array.shape));
    }
    const std::span<const float> values(array.floats(), static_cast<std::size_t>(tensor.size));
    if (!all_finite(values)) refuse_value(name + " must be finite");
    std::memcpy(flat.data() + tensor.offset, values.data(), values.size_bytes());
  }
  if (arrays.size() > mlp_tensors().size()) {
    for (const auto& [name, array] : arrays) {
      if (name != "weight1" && name != "bias1" && name != "weight2" && name != "bias2") {
        refuse_value(name + " is none of weight1, bias1, weight2 and bias2");
      }
    }
  }
  return flat;
}

Index check_mlp_input(const ConstArray& x) {
  if (x.dtype != DType::float32) refuse_type("X must be a float32 array, got " + std::string(dtype_name(x.dtype)));
  if (x.shape.size() != 2 || x.shape[1] != kMlpFeatures) {
    refuse_value("X must have shape (batch, 8), got " + shape_text(x.shape));
  }
  const Index rows = x.shape[0];
  if (rows < 1 || rows > kMlpMostRows) refuse_value("batch must be in [1, 256], got " + std::to_string(rows));
  const float* values = x.floats();
  for (Index i = 0; i < rows * kMlpFeatures; ++i) {
    if (!is_finite(values[i])) {
      refuse_value("X must be finite, got " + std::string(is_nan(values[i]) ? "NaN" : "infinity") + " in row " +
                   std::to_string(i / kMlpFeatures) + ", feature " + std::to_string(i % kMlpFeatures));
    }
  }
  return rows;
}

SmallMlp::SmallMlp(Executor& executor)
    : executor_(executor),
      pre1_(executor.memory(), kMlpMostRows * kMlpHidden),
      act_(executor.memory(), kMlpMostRows * kMlpHidden),
      pre2_(executor.memory(), kMlpMostRows * kMlpClasses),
      logits_(executor.memory(), kMlpMostRows * kMlpClasses),
      row_loss_(executor.memory(), kMlpMostRows),
      d_logits_(executor.memory(), kMlpMostRows * kMlpClasses),
      d_act_(executor.memory(), kMlpMostRows * kMlpHidden),
      d_hidden_(executor.memory(), kMlpMostRows * kMlpHidden),
      one_row_(executor.memory(), kMlpMostRows) {
  if (executor.numeric_mode() != NumericMode::identical) {
    refuse_unsupported("the small MLP knows the numeric mode identical only, got " +
                       std::string(numeric_mode_name(executor.numeric_mode())));
  }
  one_row_.zero();
}

void SmallMlp::refuse_non_finite(const char* what, Index count, const float* values) const {
  const Index at = executor_.elementwise().first_non_finite(count, values);
  if (at < 0) return;
  throw Error(ErrorKind::value, kNonFiniteClass,
              std::string("nonfinite: ") + what + " is not finite, at flat index " + std::to_string(at));
}

const float* SmallMlp::forward(Index rows, const float* parameters, const float* x, StageRecorder* stages) {
  LinearKernels& linear = executor_.linear();
  const Index hidden = rows * kMlpHidden;
  const Index classes = rows * kMlpClasses;
  linear.gemm(Layout::nt, rows, kMlpHidden, kMlpFeatures, x, part(parameters, kWeight1), pre1_.data());
  refuse_non_finite("the first projection", hidden, pre1_.data());  // before the ReLU, which would hide -infinity
  executor_.memory().copy(act_.data(), pre1_.data(), static_cast<std::size_t>(hidden) * sizeof(float));
  linear.add_bias(rows, kMlpHidden, part(parameters, kBias1), act_.data());
  executor_.elementwise().relu_forward(hidden, act_.data(), act_.data());
  refuse_non_finite("an activation", hidden, act_.data());
  linear.gemm(Layout::nt, rows, kMlpClasses, kMlpHidden, act_.data(), part(parameters, kWeight2), pre2_.data());
  refuse_non_finite("the second projection", classes, pre2_.data());
  executor_.memory().copy(logits_.data(), pre2_.data(), static_cast<std::size_t>(classes) * sizeof(float));
  linear.add_bias(rows, kMlpClasses, part(parameters, kBias2), logits_.data());
  refuse_non_finite("a logit", classes, logits_.data());
  if (stages != nullptr) {
    stages->record("pre1", {rows, kMlpHidden}, pre1_.data());
    stages->record("act", {rows, kMlpHidden}, act_.data());
    stages->record("pre2", {rows, kMlpClasses}, pre2_.data());
  }
  return logits_.data();
}

// One chain over all rows without leaves (spec 50 section B3 step 5): that of an embedding whose one row every position
// has taken.
void SmallMlp::bias_gradient(Index rows, Index width, const float* upstream, float* gradient) {
  executor_.embedding().embedding_backward(rows, 1, width, one_row_.data(), upstream, false, -1, gradient);
}

float SmallMlp::backward(Index rows, const float* parameters, const float* x, const std::int32_t* targets,
                         float* gradients, float* d_x, StageRecorder* stages) {
  LinearKernels& linear = executor_.linear();
  const Index hidden = rows * kMlpHidden;
  const auto count = static_cast<float>(rows);
  CrossEntropyShape shape;
  shape.rows = rows;
  shape.classes = kMlpClasses;
  executor_.loss().cross_entropy(shape, logits_.data(), targets, count, row_loss_.data(), d_logits_.data(), {});
  const float loss = div(linear.sum(rows, row_loss_.data()), count);
  if (!is_finite(loss))
    throw Error(ErrorKind::value, kNonFiniteClass, "nonfinite: the loss of the batch is not finite");

  linear.gemm(Layout::tn, kMlpClasses, kMlpHidden, rows, d_logits_.data(), act_.data(), part(gradients, kWeight2));
  bias_gradient(rows, kMlpClasses, d_logits_.data(), part(gradients, kBias2));
  linear.gemm(Layout::nn, rows, kMlpHidden, kMlpClasses, d_logits_.data(), part(parameters, kWeight2), d_act_.data());
  refuse_non_finite("the gradient of an activation", hidden, d_act_.data());
  executor_.elementwise().relu_backward(hidden, act_.data(), d_act_.data(), d_hidden_.data());
  linear.gemm(Layout::tn, kMlpHidden, kMlpFeatures, rows, d_hidden_.data(), x, part(gradients, kWeight1));
  bias_gradient(rows, kMlpHidden, d_hidden_.data(), part(gradients, kBias1));
  refuse_non_finite("a gradient", kMlpParameters, gradients);
  if (d_x != nullptr) {
    linear.gemm(Layout::nn, rows, kMlpFeatures, kMlpHidden, d_hidden_.data(), part(parameters, kWeight1), d_x);
    refuse_non_finite("the gradient of X", rows * kMlpFeatures, d_x);
  }
  if (stages != nullptr) {
    stages->record("dlogits", {rows, kMlpClasses}, d_logits_.data());
    stages->record("dhidden", {rows, kMlpHidden}, d_hidden_.data());
  }
  return loss;
}

}  // namespace samba
