#include "samba/model/loss.h"

#include <cmath>
#include <string>
#include <vector>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/model/samba_stack.h"
#include "samba/numerics/float32.h"

namespace samba {

namespace {

constexpr Index kMostClasses = 16777216;
constexpr Index kMostRows = 4000000;
constexpr Index kMostItems = 16777216;

void require_matrix(const char* name, const ConstArray& array) {
  if (array.dtype != DType::float32) {
    refuse_type(std::string(name) + " must be float32, got " + std::string(dtype_name(array.dtype)));
  }
  if (array.shape.size() != 2) {
    refuse_value(std::string(name) + " must have two axes, got the shape " + shape_text(array.shape));
  }
}

std::int64_t integer_at(const ConstArray& array, Index index) {
  return array.dtype == DType::int64 ? static_cast<const std::int64_t*>(array.data)[index]
                                     : static_cast<const std::int32_t*>(array.data)[index];
}

void require_targets(const ConstArray& targets, Index rows) {
  if (targets.dtype != DType::int32 && targets.dtype != DType::int64) {
    refuse_type("targets must be int32 or int64, got " + std::string(dtype_name(targets.dtype)));
  }
  if (targets.shape != Shape{rows}) {
    refuse_value("targets must have the shape " + shape_text({rows}) + ", got " + shape_text(targets.shape));
  }
}

void require_finite(const char* name, const ConstArray& array) {
  for (Index i = 0; i < array.size(); ++i) {
    const float value = array.floats()[i];
    if (is_finite(value)) continue;
    throw Error(
        ErrorKind::value, kNonFiniteClass,
        std::string(name) + ": " + (is_nan(value) ? "NaN" : "infinity") + " at flat index " + std::to_string(i));
  }
}

template <class T>
DeviceArray<T> upload(Executor& executor, Index count, const void* host) {
  DeviceArray<T> device(executor.memory(), count);
  device.upload(static_cast<const T*>(host));
  return device;
}

Array download(const DeviceArray<float>& device, Shape shape) {
  Array host = Array::zeros(std::move(shape));
  device.download(host.floats().data());
  return host;
}

struct CheckedTargets {
  std::vector<std::int32_t> values;
  Index counted = 0;
};

CheckedTargets checked_classes(const ConstArray& targets, Index classes, const std::int64_t* ignore_index) {
  CheckedTargets checked;
  for (Index row = 0; row < targets.size(); ++row) {
    const std::int64_t target = integer_at(targets, row);
    const bool ignored = ignore_index != nullptr && target == *ignore_index;
    if (!ignored && (target < 0 || target >= classes)) {
      refuse_value("targets: " + std::to_string(target) + " at row " + std::to_string(row) + " is outside [0, " +
                   std::to_string(classes) + ")" +
                   (ignore_index != nullptr ? " and is not ignore_index " + std::to_string(*ignore_index) : ""));
    }
    if (!ignored) ++checked.counted;
    // An ignore_index beyond 32 bits can be no class: any negative value stands for it.
    checked.values.push_back(
        ignored && target != static_cast<std::int32_t>(target) ? -1 : static_cast<std::int32_t>(target));
  }
  return checked;
}

float divisor_of(const CrossEntropyOptions& options, Index counted) {
  if (options.reduction == Reduction::mean) {
    if (counted == 0) refuse_value("targets: a mean needs at least one target that is not ignored, all are");
  } else if (options.num_items && (*options.num_items < 0 || *options.num_items > kMostItems)) {
    refuse_value("num_items must be in [0, " + std::to_string(kMostItems) + "], got " +
                 std::to_string(*options.num_items));
  }
  if (counted > kMostItems) {
    refuse_value("at most " + std::to_string(kMostItems) + " targets can be counted, got " + std::to_string(counted));
  }
  if (options.reduction == Reduction::mean) return static_cast<float>(counted);
  const Index items = options.num_items.value_or(0);
  return items > 0 ? static_cast<float>(items) : 1.0F;
}

}  // namespace

CrossEntropyResult cross_entropy(Executor& executor, ConstArray logits, ConstArray targets,
                                 const CrossEntropyOptions& options, CrossEntropyIntermediates* intermediates) {
  const FloatScope float_scope;
  require_matrix("logits", logits);
  const Index rows = logits.shape[0];
  const Index classes = logits.shape[1];
  if (classes < 1 || classes > kMostClasses) {
    refuse_value("logits must have 1 to " + std::to_string(kMostClasses) + " classes, got " + std::to_string(classes));
  }
  if (rows < 1 || rows > kMostRows) {
    refuse_value("logits must have 1 to " + std::to_string(kMostRows) + " rows, got " + std::to_string(rows));
  }
  require_targets(targets, rows);
  if (!(options.label_smoothing >= 0.0 && options.label_smoothing < 1.0)) {
    refuse_value("label_smoothing must be in [0, 1), got " + std::to_string(options.label_smoothing));
  }
  require_finite("logits", logits);
  const CheckedTargets checked = checked_classes(targets, classes, &options.ignore_index);
  const float divisor = divisor_of(options, checked.counted);

  CrossEntropyShape shape;
  shape.rows = rows;
  shape.classes = classes;
  shape.ignore_index = options.ignore_index == static_cast<std::int32_t>(options.ignore_index)
                           ? static_cast<std::int32_t>(options.ignore_index)
                           : -1;
  shape.label_smoothing = static_cast<float>(options.label_smoothing);
  auto device_logits = upload<float>(executor, rows * classes, logits.data);
  auto device_targets = upload<std::int32_t>(executor, rows, checked.values.data());
  DeviceArray<float> row_loss(executor.memory(), rows);
  const bool wants_gradient = options.reduction != Reduction::none;
  DeviceArray<float> gradient(executor.memory(), wants_gradient ? rows * classes : 0);
  const bool staged = intermediates != nullptr;
  DeviceArray<float> per_row(executor.memory(), staged ? 3 * rows : 0);
  DeviceArray<float> per_class(executor.memory(), staged ? 2 * rows * classes : 0);
  CrossEntropyStages stages;
  if (staged) {
    stages.max = per_row.data();
    stages.denominator = per_row.data() + rows;
    stages.log_denominator = per_row.data() + 2 * rows;
    stages.shift = per_class.data();
    stages.exponentials = per_class.data() + rows * classes;
  }
  executor.loss().cross_entropy(shape, device_logits.data(), device_targets.data(), divisor, row_loss.data(),
                                wants_gradient ? gradient.data() : nullptr, stages);

  CrossEntropyResult result;
  result.row_loss = download(row_loss, {rows});
  if (wants_gradient) {
    result.loss = div(executor.linear().sum(rows, row_loss.data()), divisor);
    result.gradient = download(gradient, logits.shape);
  }
  if (staged) {
    const auto copy = [&](const float* device, Shape target_shape) {
      Array host = Array::zeros(std::move(target_shape));
      executor.memory().copy_to_host(host.data(), device, host.byte_size());
      return host;
    };
    intermediates->max = copy(stages.max, {rows});
    intermediates->denominator = copy(stages.denominator, {rows});
    intermediates->log_denominator = copy(stages.log_denominator, {rows});
    intermediates->shift = copy(stages.shift, logits.shape);
    intermediates->exponentials = copy(stages.exponentials, logits.shape);
  }
  return result;
}

ChunkedHeadResult chunked_lm_head_loss(Executor& executor, ConstArray hidden, ConstArray weight, ConstArray targets) {
  const FloatScope float_scope;
  require_matrix("hidden", hidden);
  require_matrix("weight", weight);
  const Index rows = hidden.shape[0];
  const Index width = hidden.shape[1];
  const Index classes = weight.shape[0];
  if (rows < 1 || width < 1) {
    refuse_value("hidden must have at least one row and one column, got the shape " + shape_text(hidden.shape));
  }
  if (classes < 2) refuse_value("weight must have at least two rows (classes), got " + std::to_string(classes));
  if (weight.shape[1] != width) {
    refuse_value("weight must have the width of hidden, " + std::to_string(width) + ", got the shape " +
                 shape_text(weight.shape));
  }
  require_targets(targets, rows);
  require_finite("hidden", hidden);
  require_finite("weight", weight);
  const CheckedTargets checked = checked_classes(targets, classes, nullptr);

  auto device_hidden = upload<float>(executor, rows * width, hidden.data);
  auto device_weight = upload<float>(executor, classes * width, weight.data);
  auto device_targets = upload<std::int32_t>(executor, rows, checked.values.data());
  DeviceArray<float> d_hidden(executor.memory(), rows * width);
  DeviceArray<float> d_weight(executor.memory(), classes * width);
  ChunkedHeadResult result;
  result.loss = executor.loss().chunked_lm_head_loss(rows, width, classes, device_hidden.data(), device_weight.data(),
                                                     device_targets.data(), d_hidden.data(), d_weight.data());
  result.d_hidden = download(d_hidden, hidden.shape);
  result.d_weight = download(d_weight, weight.shape);
  return result;
}

}  // namespace samba
