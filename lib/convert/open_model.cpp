#include "samba/convert/open_model.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "samba/core/error.h"
#include "samba/formats/stack_weight.h"
#include "samba/kernels/weight.h"
#include "samba/model/weight_source.h"
#include "samba/numerics/float32.h"

namespace samba {

namespace {

[[noreturn]] void refuse_non_finite(const ModelTensor& tensor, Index element) {
  refuse_corrupt("weights_finite",
                 tensor.source + ": element " + std::to_string(element) + " of " + tensor.name + " is not finite");
}

// The format of most values as inference takes them.
WeightFormat taken_format(const OpenModel& model) {
  std::map<WeightFormat, Index> values;
  for (const ModelTensor& tensor : model.tensors) {
    const WeightFormat format = tensor.view ? tensor.view->format() : tensor.format;
    if (tensor.shape.size() == 2) values[format] += element_count(tensor.shape);
  }
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  return values.empty() ? WeightFormat::float32 : std::max_element(values.begin(), values.end(), fewer)->first;
}

// The tensors of a model as a stack takes them: those with a view from where they lie, the others one by one.
class OpenModelWeights final : public WeightSource {
 public:
  explicit OpenModelWeights(const OpenModel& model) : model_(model), format_(taken_format(model)) {}
  WeightFormat format() const override { return format_; }
  ConstWeight open(std::size_t index) override {
    const ModelTensor& tensor = model_.tensors[index];
    const ConstWeight weight = tensor.view ? *tensor.view : loaded_.emplace(index, tensor.load()).first->second.view();
    check_finite(tensor, weight);
    return weight;
  }
  void release(std::size_t index) override {
    loaded_.erase(index);
    if (model_.tensors[index].drop) model_.tensors[index].drop();
  }

 private:
  static void check_finite(const ModelTensor& tensor, const ConstWeight& weight) {
    const auto look = [&](const float* values, Index count, Index first) {
      for (Index i = 0; i < count; ++i) {
        if (!is_finite(values[i])) refuse_non_finite(tensor, first + i);
      }
    };
    if (!weight.is_packed()) return look(weight.array().floats(), weight.size(), 0);
    const ConstPackedWeight& packed = weight.packed();
    std::vector<float> row(static_cast<std::size_t>(packed.columns));
    for (Index i = 0; i < packed.rows; ++i) {
      expand(packed_rows(packed, i, i + 1), row);
      look(row.data(), packed.columns, i * packed.columns);
    }
  }

  const OpenModel& model_;
  WeightFormat format_;
  std::map<std::size_t, Weight> loaded_;
};

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
  OpenModelWeights weights(model);
  return std::make_unique<SambaStack>(executor, model.state.config, weights);
}

}  // namespace samba
