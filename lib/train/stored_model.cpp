#include "samba/train/stored_model.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "samba/core/error.h"
#include "samba/formats/stack_weight.h"
#include "samba/train/checkpoint_source.h"
#include "samba/train/model_folder.h"
#include "samba/train/stack_checkpoint.h"

namespace samba {

namespace {

// Arrays laid end to end, as the Samba archive stores them, while they lie apart in memory.
class FlatArrays {
 public:
  void add(void* data, std::size_t bytes) {
    parts_.push_back({end_, static_cast<std::byte*>(data), bytes});
    end_ += bytes;
  }
  // visit(part of the arrays, its place in the piece)
  template <class Visit>
  void walk(std::uint64_t first, std::size_t bytes, Visit&& visit) const {
    auto part = std::upper_bound(parts_.begin(), parts_.end(), first,
                                 [](std::uint64_t at, const Part& candidate) { return at < candidate.begin; });
    std::size_t done = 0;
    for (--part; done < bytes; ++part) {
      const auto inside = static_cast<std::size_t>(first + done - part->begin);
      const std::size_t size = std::min(part->bytes - inside, bytes - done);
      visit(std::span(part->data + inside, size), done);
      done += size;
    }
  }

 private:
  struct Part {
    std::uint64_t begin;
    std::byte* data;
    std::size_t bytes;
  };
  std::vector<Part> parts_;
  std::uint64_t end_ = 0;
};

PieceWriter writer_into(const FlatArrays& arrays) {
  return [&arrays](std::uint64_t first, const void* from, std::size_t bytes) {
    arrays.walk(first, bytes, [&](std::span<std::byte> part, std::size_t at) {
      std::memcpy(part.data(), static_cast<const char*>(from) + at, part.size());
    });
  };
}

PieceReader reader_from(const FlatArrays& arrays) {
  return [&arrays](std::uint64_t first, void* to, std::size_t bytes) {
    arrays.walk(first, bytes, [&](std::span<std::byte> part, std::size_t at) {
      std::memcpy(static_cast<char*>(to) + at, part.data(), part.size());
    });
  };
}

// The four arrays of the Samba archive as views of the maps' tensors.
std::array<FlatArrays, kArchiveArrays> archive_views(const Registry& registry, ArrayMap& weights, ArrayMap& moments) {
  std::array<FlatArrays, kArchiveArrays> views;
  const auto add = [](FlatArrays& view, Array& array) { view.add(array.data(), array.byte_size()); };
  for (const ParameterTensor& tensor : registry.tensors()) {
    add(views[kParameters], weights.at(tensor.name));
    if (moments.empty()) continue;
    add(views[kExpAvg], moments.at("exp_avg." + tensor.name));
    add(views[kExpAvgSq], moments.at("exp_avg_sq." + tensor.name));
  }
  if (!moments.empty()) add(views[kBufferInitialized], moments.at(kInitializedName));
  return views;
}

void describe_tensors(StoredModel& model, const Registry& registry) {
  for (const ParameterTensor& tensor : registry.tensors()) {
    model.tensors.push_back(describe_weight(tensor.name, model.weights.at(tensor.name).view()));
  }
}

StoredModel read_samba(const Path& path, Reading reading) {
  const bool everything = reading == Reading::everything;
  CheckpointSource source(path, everything);
  const Registry& registry = source.registry();
  StoredModel model;
  model.form = source.legacy() ? ModelForm::legacy_json : ModelForm::samba_archive;
  model.file_bytes = source.file_size();
  model.description = source.state();
  model.state.config = source.config();
  model.trainable = true;
  ArrayMap weights;
  for (const ParameterTensor& tensor : registry.tensors()) weights.emplace(tensor.name, Array::zeros(tensor.shape));
  if (everything) {
    for (const MomentSpec& spec : moment_specs(registry, OptimizerKind::adamw)) {
      model.moments.emplace(spec.name, Array(spec.dtype, spec.shape));
    }
  }
  const auto views = archive_views(registry, weights, model.moments);
  FiniteWatch watch;
  std::array<PieceWriter, kArchiveArrays> destinations = {watch.watched(writer_into(views[kParameters])), {}, {}, {}};
  for (std::size_t array = kExpAvg; everything && array < kArchiveArrays; ++array) {
    destinations[array] = writer_into(views[array]);
  }
  source.read_arrays(destinations, {});
  if (everything) {
    model.state.training = parse_training_state(source.state(), source.path());
    model.state.step = model.state.training->completed_steps;
  } else if (source.state().contains("t") && source.state()["t"].is_number_integer()) {
    model.state.step = source.state()["t"].get<Index>();  // a legacy file's is not checked for inference
  }
  watch.refuse_if_found(source);
  for (auto& [name, array] : weights) model.weights.emplace(name, std::move(array));
  describe_tensors(model, registry);
  return model;
}

StoredModel read_stack(const Path& path, Reading reading) {
  StackCheckpointReader reader(path, reading == Reading::everything);
  StoredModel model;
  model.form = ModelForm::stack_archive;
  model.file_bytes = reader.archive().file_size();
  model.description = reader.archive().state();
  model.state = reader.state();
  model.trainable = !reader.archive().inference_only();
  model.weights = reader.weights();
  model.tensors.assign(reader.archive().parameters().begin(), reader.archive().parameters().end());
  for (const StackTensor& tensor : reader.archive().moments()) {
    const std::vector<std::byte> raw = reader.read(tensor);
    if (!model.state.training) continue;
    Array array(tensor.dtype, tensor.shape);
    std::memcpy(array.data(), raw.data(), raw.size());
    model.moments.emplace(tensor.name, std::move(array));
  }
  return model;
}

std::string write_samba(const StoredModel& model, const Registry& registry, const Path& path) {
  // The views are only read from.
  std::array<FlatArrays, kArchiveArrays> views;
  const auto add = [](FlatArrays& view, const Array& array) {
    view.add(const_cast<void*>(array.data()), array.byte_size());
  };
  for (const ParameterTensor& tensor : registry.tensors()) {
    add(views[kParameters], model.weights.at(tensor.name).array());
    add(views[kExpAvg], model.moments.at("exp_avg." + tensor.name));
    add(views[kExpAvgSq], model.moments.at("exp_avg_sq." + tensor.name));
  }
  add(views[kBufferInitialized], model.moments.at(kInitializedName));
  return write_samba_archive(path, samba_state_json(model.state), archive_counts(registry),
                             {reader_from(views[kParameters]), reader_from(views[kExpAvg]),
                              reader_from(views[kExpAvgSq]), reader_from(views[kBufferInitialized])});
}

}  // namespace

std::string_view model_form_name(ModelForm form) {
  switch (form) {
    case ModelForm::samba_archive:
      return "streamed archive";
    case ModelForm::legacy_json:
      return "legacy JSON";
    case ModelForm::stack_archive:
      return "samba.stack.v1";
    case ModelForm::folder:
      return "safetensors folder";
    case ModelForm::huggingface_folder:
      return "Hugging Face folder";
    case ModelForm::mamba_ssm_folder:
      return "mamba_ssm folder";
    case ModelForm::gguf_file:
      return "GGUF";
  }
  throw Error(ErrorKind::internal, "unknown form of a model");
}

StoredModel read_model(const Path& path, Reading reading) {
  if (is_model_folder(path)) return read_model_folder(path, reading);
  if (is_stack_archive(path)) return read_stack(path, reading);
  return read_samba(path, reading);
}

ModelForm file_form(const StoredModel& model) {
  const bool archive = fits_samba_archive(model.state) && model.format() == WeightFormat::float32;
  return archive ? ModelForm::samba_archive : ModelForm::stack_archive;
}

std::vector<std::string> moment_names(const StoredModel& model) {
  std::vector<std::string> names;
  if (!model.state.training) return names;
  for (const MomentSpec& spec : moment_specs(Registry(model.state.config), model.state.training->optimizer.kind)) {
    names.push_back(spec.name);
  }
  return names;
}

std::string write_model_file(const StoredModel& model, const Path& path, TensorCodec codec) {
  const Registry registry(model.state.config);
  if (file_form(model) == ModelForm::samba_archive && codec == TensorCodec::none) {
    return write_samba(model, registry, path);
  }
  std::vector<StackTensorSource> parameters, moments;
  for (const ParameterTensor& tensor : registry.tensors()) {
    parameters.push_back(stack_tensor_source(tensor.name, model.weights.at(tensor.name).view()));
  }
  for (const std::string& name : moment_names(model)) {
    moments.push_back(stack_tensor_source(name, model.moments.at(name)));
  }
  return write_stack_archive(path, stack_state_json(model.state, model.format()), parameters, moments, codec);
}

}  // namespace samba
