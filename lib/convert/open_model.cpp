#include "samba/convert/open_model.h"

#include <algorithm>
#include <future>
#include <map>

#include "samba/core/error.h"
#include "samba/formats/stack_weight.h"
#include "samba/kernels/weight_rows.h"
#include "samba/model/weight_source.h"
#include "samba/numerics/block_weight.h"
#include "samba/numerics/float32.h"

namespace samba {

namespace {

[[noreturn]] void refuse_non_finite(const ModelTensor& tensor, Index element) {
  refuse_corrupt("weights_finite",
                 tensor.source + ": element " + std::to_string(element) + " of " + tensor.name + " is not finite");
}

WeightFormat format_inference_takes(const ModelTensor& tensor) {
  return tensor.view ? tensor.view->format() : tensor.format;
}

// The format of most values as inference takes them.
WeightFormat taken_format(const OpenModel& model) {
  std::map<WeightFormat, Index> values;
  for (const ModelTensor& tensor : model.tensors) {
    if (tensor.shape.size() == 2) values[format_inference_takes(tensor)] += element_count(tensor.shape);
  }
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  return values.empty() ? WeightFormat::float32 : std::max_element(values.begin(), values.end(), fewer)->first;
}

bool has_rows_of_blocks(const ConstWeight& weight) { return weight.is_packed() && weight.packed().blocks != nullptr; }

bool blocks_are_finite(const ConstPackedWeight& weight) {
  for (Index i = 0; i < weight.rows; ++i) {
    if (!block_row_is_finite(weight.format, weight.block_row(i), weight.columns)) return false;
  }
  return true;
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
    const ModelTensor& tensor = model_.tensors[index];
    loaded_.erase(index);
    // Rows of blocks are read where they lie from now on.
    const bool stays = tensor.view && has_rows_of_blocks(*tensor.view);
    if (tensor.drop && !stays) tensor.drop();
  }

 private:
  static void check_finite(const ModelTensor& tensor, const ConstWeight& weight) {
    if (has_rows_of_blocks(weight) && blocks_are_finite(weight.packed())) return;
    for (WeightRows rows(weight); !rows.done(); rows.next()) {
      const std::span<const float> values = rows.values();
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (!is_finite(values[i])) refuse_non_finite(tensor, static_cast<Index>(rows.first() + i));
      }
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

std::vector<WeightFormat> taken_formats(const OpenModel& model) {
  std::vector<WeightFormat> formats;
  for (const ModelTensor& tensor : model.tensors) formats.push_back(format_inference_takes(tensor));
  return formats;
}

StackTensor describe_tensor(const ModelTensor& tensor, Sha256& values) {
  const HeldTensor held(tensor);
  const ConstWeight weight = held.view();
  const bool expands = has_rows_of_blocks(weight);
  StackTensor entry;
  if (tensor.entry) {
    entry = *tensor.entry;
  } else if (!expands) {
    entry = describe_weight(tensor.name, weight);
  }
  Sha256 own;
  for (WeightRows rows(weight); !rows.done(); rows.next()) {
    const std::span<const float> piece = rows.values();
    if (!expands) {
      values.update(piece.data(), piece.size_bytes());
      continue;
    }
    auto digest = std::async(std::launch::async, [&] { own.update(piece.data(), piece.size_bytes()); });
    values.update(piece.data(), piece.size_bytes());
    digest.get();
  }
  if (!expands || tensor.entry) return entry;
  entry.name = tensor.name;
  entry.shape = tensor.shape;
  entry.raw_bytes = entry.stored_bytes = static_cast<std::uint64_t>(element_count(tensor.shape)) * sizeof(float);
  entry.sha256 = own.finish_hex();
  return entry;
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
