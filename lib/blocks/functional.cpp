#include "samba/blocks/functional.h"

#include <cmath>
#include <string>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/numerics/float32.h"

namespace samba::functional {

namespace {

using Device = DeviceArray<float>;

void check_floats(const std::string& name, const ConstArray& array) {
  if (array.dtype != DType::float32) {
    refuse_type(name + " must be float32, got " + std::string(dtype_name(array.dtype)));
  }
}

void check_shape(const std::string& name, const ConstArray& array, const Shape& wanted) {
  check_floats(name, array);
  if (array.shape != wanted) {
    refuse_value(name + " must have shape " + shape_text(wanted) + ", got " + shape_text(array.shape));
  }
}

// Shape (rows, columns), both at least 1; `operation` names the refusal "<operation> shape must be positive".
void check_matrix(const std::string& operation, const std::string& name, const ConstArray& array) {
  check_floats(name, array);
  if (array.shape.size() != 2) refuse_value(name + " must have two dimensions, got " + shape_text(array.shape));
  if (array.shape[0] < 1 || array.shape[1] < 1) {
    refuse_value(operation + " shape must be positive, got " + shape_text(array.shape) + " for " + name);
  }
}

void check_finite(const std::string& name, const ConstArray& array) {
  const Index n = array.size();
  for (Index i = 0; i < n; ++i) {
    if (!is_finite(array.floats()[i])) refuse_value("non-finite " + name + " at flat index " + std::to_string(i));
  }
}

float checked_eps(const std::string& operation, double eps) {
  const auto value = static_cast<float>(eps);
  if (!(eps >= 0.0) || !is_finite(value)) {
    refuse_value(operation + " eps must be finite and not negative, got " + std::to_string(eps));
  }
  return value;
}

Device upload(Executor& executor, const ConstArray& array) {
  Device device(executor.memory(), array.size());
  device.upload(array.floats());
  return device;
}

Device upload(Executor& executor, const std::optional<ConstArray>& array) {
  return array ? upload(executor, *array) : Device();
}

Array download(const Device& device, Shape shape) {
  Array array = Array::zeros(std::move(shape));
  device.download(array.floats().data());
  return array;
}

DeviceArray<std::int32_t> checked_ids(Executor& executor, const ConstArray& ids, Index vocab) {
  if (ids.dtype != DType::int32) {
    refuse_type("embedding ids must be int32, got " + std::string(dtype_name(ids.dtype)));
  }
  if (ids.shape.size() != 1 || ids.shape[0] < 1) {
    refuse_value("embedding ids must be a list of at least one id, got shape " + shape_text(ids.shape));
  }
  const auto* values = static_cast<const std::int32_t*>(ids.data);
  for (Index t = 0; t < ids.shape[0]; ++t) {
    if (values[t] < 0 || values[t] >= vocab) {
      refuse_value("embedding: id " + std::to_string(values[t]) + " at position " + std::to_string(t) +
                   " is outside [0, " + std::to_string(vocab) + ")");
    }
  }
  DeviceArray<std::int32_t> device(executor.memory(), ids.shape[0]);
  device.upload(values);
  return device;
}

void check_dropout_input(const std::string& name, const ConstArray& x) {
  check_floats(name, x);
  if (x.size() < 1) refuse_value(name + " must not be empty");
  const Index n = x.size();
  for (Index i = 0; i < n; ++i) {
    if (!is_finite(x.floats()[i])) refuse_value("non-finite " + name + " at " + std::to_string(i));
  }
}

Array masked(Executor& executor, const DropoutKey& key, const ConstArray& x) {
  Device values = upload(executor, x);
  executor.random().dropout(key, x.size(), values.data(), values.data());
  return download(values, x.shape);
}

}  // namespace

Array linear(Executor& executor, ConstArray input, ConstArray weight) {
  const FloatScope float_scope;
  check_matrix("linear", "linear input", input);
  check_matrix("linear", "linear weight", weight);
  const Index m = input.shape[0], k = input.shape[1], n = weight.shape[0];
  check_shape("linear weight", weight, {n, k});
  check_finite("linear input", input);
  check_finite("linear weight", weight);
  const Device a = upload(executor, input), w = upload(executor, weight);
  Device c(executor.memory(), m * n);
  executor.linear().gemm(Layout::nt, m, n, k, a.data(), w.data(), c.data());
  return download(c, {m, n});
}

LinearGradients linear_backward(Executor& executor, ConstArray upstream, ConstArray input, ConstArray weight) {
  const FloatScope float_scope;
  check_matrix("linear", "linear input", input);
  check_matrix("linear", "linear weight", weight);
  const Index m = input.shape[0], k = input.shape[1], n = weight.shape[0];
  check_shape("linear weight", weight, {n, k});
  check_shape("linear upstream gradient", upstream, {m, n});
  check_finite("linear input", input);
  check_finite("linear weight", weight);
  check_finite("linear upstream gradient", upstream);
  const Device a = upload(executor, input), w = upload(executor, weight), dc = upload(executor, upstream);
  Device da(executor.memory(), m * k), dw(executor.memory(), n * k);
  executor.linear().gemm(Layout::nn, m, k, n, dc.data(), w.data(), da.data());
  executor.linear().gemm(Layout::tn, n, k, m, dc.data(), a.data(), dw.data());
  return {download(da, {m, k}), download(dw, {n, k})};
}

Array mlp_logits(Executor& executor, ConstArray x, ConstArray weight1, ConstArray bias1, ConstArray weight2,
                 ConstArray bias2) {
  const FloatScope float_scope;
  check_matrix("mlp", "mlp x", x);
  check_matrix("mlp", "mlp weight1", weight1);
  check_matrix("mlp", "mlp weight2", weight2);
  const Index rows = x.shape[0], hidden = weight1.shape[0], classes = weight2.shape[0];
  check_shape("mlp weight1", weight1, {hidden, x.shape[1]});
  check_shape("mlp bias1", bias1, {hidden});
  check_shape("mlp weight2", weight2, {classes, hidden});
  check_shape("mlp bias2", bias2, {classes});
  const std::pair<const char*, const ConstArray&> inputs[] = {
      {"mlp x", x}, {"mlp weight1", weight1}, {"mlp bias1", bias1}, {"mlp weight2", weight2}, {"mlp bias2", bias2}};
  for (const auto& [name, array] : inputs) check_finite(name, array);
  const Device device_x = upload(executor, x), w1 = upload(executor, weight1), b1 = upload(executor, bias1);
  const Device w2 = upload(executor, weight2), b2 = upload(executor, bias2);
  Device act(executor.memory(), rows * hidden), logits(executor.memory(), rows * classes);
  LinearKernels& kernels = executor.linear();
  kernels.gemm(Layout::nt, rows, hidden, x.shape[1], device_x.data(), w1.data(), act.data());
  kernels.add_bias(rows, hidden, b1.data(), act.data());
  executor.elementwise().relu_forward(rows * hidden, act.data(), act.data());
  kernels.gemm(Layout::nt, rows, classes, hidden, act.data(), w2.data(), logits.data());
  kernels.add_bias(rows, classes, b2.data(), logits.data());
  return download(logits, {rows, classes});
}

Array rms_norm(Executor& executor, ConstArray x, ConstArray weight, double eps, bool offset) {
  const FloatScope float_scope;
  check_matrix("rms_norm", "rms_norm input", x);
  const Index m = x.shape[0], d = x.shape[1];
  check_shape("rms_norm weight", weight, {d});
  const float epsilon = checked_eps("rms_norm", eps);
  check_finite("rms_norm input", x);
  check_finite("rms_norm weight", weight);
  const Device values = upload(executor, x), w = upload(executor, weight);
  Device y(executor.memory(), m * d);
  executor.norm().rms_norm_forward(m, d, epsilon, offset, values.data(), w.data(), y.data(), nullptr, nullptr);
  return download(y, {m, d});
}

NormGradients rms_norm_backward(Executor& executor, ConstArray upstream, ConstArray x, ConstArray weight, double eps) {
  const FloatScope float_scope;
  check_matrix("rms_norm", "rms_norm input", x);
  const Index m = x.shape[0], d = x.shape[1];
  check_shape("rms_norm weight", weight, {d});
  check_shape("rms_norm upstream gradient", upstream, {m, d});
  const float epsilon = checked_eps("rms_norm", eps);
  check_finite("rms_norm input", x);
  check_finite("rms_norm weight", weight);
  check_finite("rms_norm upstream gradient", upstream);
  const Device values = upload(executor, x), w = upload(executor, weight), dy = upload(executor, upstream);
  Device dx(executor.memory(), m * d), dw(executor.memory(), d);
  executor.norm().rms_norm_backward(m, d, epsilon, values.data(), w.data(), dy.data(), dx.data(), dw.data(), nullptr);
  return {download(dx, {m, d}), download(dw, {d}), std::nullopt};
}

Array layer_norm(Executor& executor, ConstArray x, const std::optional<ConstArray>& weight,
                 const std::optional<ConstArray>& bias, double eps) {
  const FloatScope float_scope;
  check_matrix("layer_norm", "layer_norm input", x);
  const Index m = x.shape[0], d = x.shape[1];
  if (weight) check_shape("layer_norm weight", *weight, {d});
  if (bias) check_shape("layer_norm bias", *bias, {d});
  const float epsilon = checked_eps("layer_norm", eps);
  check_finite("layer_norm input", x);
  if (weight) check_finite("layer_norm weight", *weight);
  if (bias) check_finite("layer_norm bias", *bias);
  const Device values = upload(executor, x), w = upload(executor, weight), b = upload(executor, bias);
  Device y(executor.memory(), m * d);
  executor.norm().layer_norm_forward(m, d, epsilon, values.data(), w.data(), b.data(), y.data());
  return download(y, {m, d});
}

NormGradients layer_norm_backward(Executor& executor, ConstArray upstream, ConstArray x,
                                  const std::optional<ConstArray>& weight, bool bias, double eps) {
  const FloatScope float_scope;
  check_matrix("layer_norm", "layer_norm input", x);
  const Index m = x.shape[0], d = x.shape[1];
  if (weight) check_shape("layer_norm weight", *weight, {d});
  check_shape("layer_norm upstream gradient", upstream, {m, d});
  const float epsilon = checked_eps("layer_norm", eps);
  check_finite("layer_norm input", x);
  if (weight) check_finite("layer_norm weight", *weight);
  check_finite("layer_norm upstream gradient", upstream);
  const Device values = upload(executor, x), w = upload(executor, weight), dy = upload(executor, upstream);
  Device dx(executor.memory(), m * d);
  Device dw = weight ? Device(executor.memory(), d) : Device();
  Device db = bias ? Device(executor.memory(), d) : Device();
  executor.norm().layer_norm_backward(m, d, epsilon, values.data(), w.data(), dy.data(), dx.data(), dw.data(),
                                      db.data());
  NormGradients gradients{download(dx, {m, d}), std::nullopt, std::nullopt};
  if (weight) gradients.weight = download(dw, {d});
  if (bias) gradients.bias = download(db, {d});
  return gradients;
}

Array embedding(Executor& executor, ConstArray weight, ConstArray ids) {
  const FloatScope float_scope;
  check_matrix("embedding", "embedding weight", weight);
  const Index vocab = weight.shape[0], d = weight.shape[1];
  const DeviceArray<std::int32_t> positions = checked_ids(executor, ids, vocab);
  check_finite("embedding weight", weight);
  const Device w = upload(executor, weight);
  Device y(executor.memory(), positions.size() * d);
  executor.embedding().embedding_forward(positions.size(), d, positions.data(), w.data(), y.data());
  return download(y, {positions.size(), d});
}

Array embedding_backward(Executor& executor, ConstArray upstream, ConstArray ids, Index vocab,
                         const EmbeddingOptions& options) {
  const FloatScope float_scope;
  check_matrix("embedding", "embedding upstream gradient", upstream);
  if (vocab < 1) refuse_value("embedding: the vocabulary must be at least 1, got " + std::to_string(vocab));
  const Index d = upstream.shape[1];
  const DeviceArray<std::int32_t> positions = checked_ids(executor, ids, vocab);
  if (positions.size() != upstream.shape[0]) {
    refuse_value("embedding: " + std::to_string(positions.size()) + " ids but an upstream gradient of " +
                 std::to_string(upstream.shape[0]) + " rows");
  }
  if (options.padding_id && (*options.padding_id < 0 || *options.padding_id >= vocab)) {
    refuse_value("embedding: padding id " + std::to_string(*options.padding_id) + " is outside [0, " +
                 std::to_string(vocab) + ")");
  }
  if (options.carry) check_shape("embedding carry", *options.carry, {vocab, d});
  check_finite("embedding upstream gradient", upstream);
  if (options.carry) check_finite("embedding carry", *options.carry);
  const Device dy = upload(executor, upstream);
  Device dw = options.carry ? upload(executor, *options.carry) : Device(executor.memory(), vocab * d);
  executor.embedding().embedding_backward(positions.size(), vocab, d, positions.data(), dy.data(),
                                          options.carry.has_value(), options.padding_id.value_or(-1), dw.data());
  return download(dw, {vocab, d});
}

Dropped dropout(Executor& executor, Generator& generator, ConstArray x, double p, std::uint64_t offset,
                std::optional<std::uint32_t> stream) {
  const FloatScope float_scope;
  check_dropout_input("dropout input", x);
  const DropoutScale scale = dropout_scale(p);
  if (offset > kLargestDropoutOffset) {
    refuse_value("dropout: offset must be in [0, " + std::to_string(kLargestDropoutOffset) + "], got " +
                 std::to_string(offset));
  }
  DropoutKey key{generator.seed(), 0, offset, scale.p, scale.scale};
  key.stream = stream ? *stream : generator.next_stream();
  return {masked(executor, key, x), key};
}

Array dropout_backward(Executor& executor, const DropoutKey& key, ConstArray upstream) {
  const FloatScope float_scope;
  check_dropout_input("dropout upstream gradient", upstream);
  return masked(executor, key, upstream);
}

Dropped residual_dropout(Executor& executor, ConstArray x, ConstArray residual, double p, std::uint64_t seed,
                         std::uint32_t stream, std::uint64_t offset) {
  const FloatScope float_scope;
  check_dropout_input("residual dropout input", x);
  check_shape("residual dropout residual", residual, x.shape);
  check_dropout_input("residual dropout residual", residual);
  const DropoutScale scale = residual_dropout_scale(p);
  if (offset >> 63 != 0) refuse_value("residual dropout: offset must be below 2^63, got " + std::to_string(offset));
  const DropoutKey key{seed, stream, offset, scale.p, scale.scale};
  const Device values = upload(executor, x), base = upload(executor, residual);
  Device y(executor.memory(), x.size());
  executor.random().residual_dropout(key, x.size(), values.data(), base.data(), y.data());
  Dropped result{download(y, x.shape), key};
  check_finite("residual dropout result", result.y);
  return result;
}

ResidualGradients residual_dropout_backward(Executor& executor, const DropoutKey& key, ConstArray upstream) {
  const FloatScope float_scope;
  check_dropout_input("residual dropout upstream gradient", upstream);
  return {masked(executor, key, upstream),
          Array::from_floats(upstream.shape, {upstream.floats(), static_cast<std::size_t>(upstream.size())})};
}

}  // namespace samba::functional
