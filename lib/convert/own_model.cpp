#include "samba/convert/own_model.h"

#include <cstring>
#include <utility>

#include "samba/convert/folder_model.h"
#include "samba/convert/folder_run.h"
#include "samba/core/error.h"
#include "samba/core/mapped_file.h"
#include "samba/formats/stack_weight.h"
#include "samba/text/model_text.h"
#include "samba/train/checkpoint_source.h"
#include "samba/train/model_folder.h"
#include "samba/train/stack_checkpoint.h"
#include "samba/train/state_dictionary.h"
#include "samba/train/state_fields.h"

namespace samba {

namespace {

// Where a form keeps a parameter.
std::string parameter_place(ModelForm form, const std::string& name, WeightFormat format) {
  if (form != ModelForm::folder) return "parameters/" + name;
  const std::string place = "model.safetensors/" + name;
  if (format == WeightFormat::bfloat16) return place + ".bits";
  if (format == WeightFormat::int8) return place + ".codes, " + name + ".exponents";
  return place;
}

std::string moment_place(ModelForm form, const std::string& name) {
  if (form == ModelForm::folder) return "optimizer.safetensors/" + name;
  if (form == ModelForm::stack_archive) return "moments/" + name;
  const std::size_t point = name.find('.');  // the archive's arrays hold the moments of all parameters
  return point == std::string::npos ? name : name.substr(0, point) + "/" + name.substr(point + 1);
}

OpenModel open_whole(const Path& path, Reading reading) {
  const auto stored = std::make_shared<StoredModel>(read_model(path, reading));
  OpenModel model;
  model.form = stored->form;
  model.path = path;
  model.file_bytes = stored->file_bytes;
  model.description = stored->description;
  model.state = stored->state;
  model.trainable = stored->trainable;
  for (const StackTensor& tensor : stored->tensors) {
    const Weight& weight = stored->weights.at(tensor.name);
    model.tensors.push_back({tensor.name, tensor.shape, parameter_place(stored->form, tensor.name, weight.format()),
                             std::string(dtype_name(tensor.dtype)), weight.format(), weight.view(),
                             [&weight] { return weight; }});
  }
  for (const std::string& name : moment_names(*stored)) {
    const Array& array = stored->moments.at(name);
    model.moments.push_back({name, array.shape(), moment_place(stored->form, name),
                             std::string(dtype_name(array.dtype())), WeightFormat::float32, ConstWeight(array),
                             [&array] { return Weight(array); }});
  }
  if (stored->form == ModelForm::folder) {
    model.companions = companion_files(path);
    model.run = read_folder_config(path).value("run", nlohmann::json());
    model.metrics = path / kMetricsName;
  }
  model.keeper = stored;
  return model;
}

// A tensor of a file that is mapped and was checked, `data` its bytes.
ModelTensor mapped_tensor(const std::shared_ptr<const MappedFile>& file, const ParameterTensor& tensor, DType dtype,
                          std::string place, const std::byte* data) {
  const std::size_t bytes = static_cast<std::size_t>(tensor.size) * dtype_size(dtype);
  ModelTensor result{tensor.name,
                     tensor.shape,
                     std::move(place),
                     std::string(dtype_name(dtype)),
                     WeightFormat::float32,
                     std::nullopt,
                     [dtype, shape = tensor.shape, data, bytes] {
                       Array array(dtype, shape);
                       if (bytes > 0) std::memcpy(array.data(), data, bytes);
                       return Weight(std::move(array));
                     }};
  if (reinterpret_cast<std::uintptr_t>(data) % dtype_size(dtype) == 0) {
    result.view = ConstArray{dtype, tensor.shape, data};
  }
  result.drop = [file, data, bytes] { file->drop({data, bytes}); };
  return result;
}

// A tensor of a legacy JSON file, which was checked: digits that are read where they lie.
ModelTensor legacy_tensor(const std::shared_ptr<const CheckpointSource>& source, std::size_t array,
                          const ParameterTensor& tensor, DType dtype, std::string place) {
  return {tensor.name,
          tensor.shape,
          std::move(place),
          std::string(dtype_name(dtype)),
          WeightFormat::float32,
          std::nullopt,
          [source, array, dtype, shape = tensor.shape, at = static_cast<std::uint64_t>(tensor.offset) * 4] {
            Array values(dtype, shape);
            source->read_legacy(array, at, {static_cast<std::byte*>(values.data()), values.byte_size()});
            return Weight(std::move(values));
          }};
}

// Every array is verified here; what is read later lies in the mapped file.
OpenModel open_archive(const Path& path, Reading reading) {
  const bool everything = reading == Reading::everything;
  const auto source = std::make_shared<CheckpointSource>(path, everything);
  FiniteWatch watch;
  source->read_arrays({watch.watched({}), {}, {}, {}}, {});
  OpenModel model;
  model.form = source->legacy() ? ModelForm::legacy_json : ModelForm::samba_archive;
  model.path = path;
  model.file_bytes = source->file_size();
  model.description = source->state();
  model.state.config = source->config();
  model.trainable = true;
  // That of a legacy file is not checked for inference.
  const nlohmann::json step = source->state().value("t", nlohmann::json());
  if (step.is_number_integer()) model.state.step = step.get<Index>();
  if (everything) model.state.training = parse_training_state(source->state(), source->path());
  watch.refuse_if_found(*source);
  auto file = std::make_shared<const MappedFile>();
  if (!source->legacy()) file = std::make_shared<const MappedFile>(path);
  if (!source->legacy() && file->bytes().size() != source->file_size()) {
    refuse_corrupt("size", path.string() + " cannot be loaded (size): it changed while it was read");
  }
  const auto add = [&](std::vector<ModelTensor>& to, std::size_t array, const ParameterTensor& tensor, DType dtype,
                       std::string place) {
    if (source->legacy()) {
      to.push_back(legacy_tensor(source, array, tensor, dtype, std::move(place)));
      return;
    }
    const std::uint64_t at = source->array_offset(array) + static_cast<std::uint64_t>(tensor.offset) * 4;
    to.push_back(mapped_tensor(file, tensor, dtype, std::move(place), file->bytes().data() + at));
  };
  const Registry& registry = source->registry();
  for (const ParameterTensor& tensor : registry.tensors()) {
    add(model.tensors, kParameters, tensor, DType::float32,
        parameter_place(model.form, tensor.name, WeightFormat::float32));
  }
  model.keeper = file;
  if (!everything) return model;
  for (const std::size_t array : {kExpAvg, kExpAvgSq}) {
    for (ParameterTensor tensor : registry.tensors()) {
      tensor.name = std::string(archive_array_name(array)) + "." + tensor.name;
      add(model.moments, array, tensor, DType::float32, moment_place(model.form, tensor.name));
    }
  }
  const auto flags = static_cast<Index>(registry.tensors().size());
  add(model.moments, kBufferInitialized, {kInitializedName, {flags}, 0, flags}, DType::int32,
      moment_place(model.form, kInitializedName));
  return model;
}

// The bytes of a weight of a mapped folder: codes and exponents lie apart.
std::vector<std::span<const std::byte>> stored_parts(const ConstWeight& weight) {
  std::vector<std::span<const std::byte>> parts;
  for (const auto& [name, array] : stored_arrays({{"w", weight}})) {
    parts.emplace_back(static_cast<const std::byte*>(array.data),
                       static_cast<std::size_t>(array.size()) * dtype_size(array.dtype));
  }
  return parts;
}

OpenModel open_folder(const Path& path, Reading reading) {
  const auto mapped = map_model_folder(path, reading);
  if (mapped == nullptr) return open_whole(path, reading);
  OpenModel model;
  model.form = ModelForm::folder;
  model.path = path;
  model.file_bytes = mapped->file_bytes;
  model.description = mapped->description;
  model.state = mapped->state;
  model.trainable = mapped->trainable;
  const Registry registry(mapped->state.config);
  for (const ParameterTensor& tensor : registry.tensors()) {
    const ConstWeight& weight = mapped->weights.at(tensor.name);
    ModelTensor& added = model.tensors.emplace_back();
    added.name = tensor.name;
    added.shape = tensor.shape;
    added.source = parameter_place(model.form, tensor.name, weight.format());
    added.dtype = weight_format_name(weight.format());
    added.format = weight.format();
    added.view = weight;
    added.load = [mapped, &weight] {
      if (weight.is_packed()) return Weight(PackedWeight(weight.packed()));
      return Weight(expand(weight));
    };
    added.drop = [mapped, &weight] {
      for (const auto part : stored_parts(weight)) mapped->model.drop(part);
    };
  }
  if (mapped->state.training) {
    const std::shared_ptr<const MappedFile> file(mapped, &mapped->optimizer);
    for (const MomentSpec& spec : moment_specs(registry, mapped->state.training->optimizer.kind)) {
      const ConstArray& array = mapped->moments.at(spec.name);
      model.moments.push_back(mapped_tensor(file, {spec.name, spec.shape, 0, array.size()}, spec.dtype,
                                            moment_place(model.form, spec.name),
                                            static_cast<const std::byte*>(array.data)));
    }
  }
  model.companions = companion_files(path);
  model.run = read_folder_config(path).value("run", nlohmann::json());
  model.metrics = path / kMetricsName;
  model.keeper = mapped;
  return model;
}

OpenModel open_stack(const Path& path, Reading reading) {
  const auto reader = std::make_shared<StackCheckpointReader>(path, reading == Reading::everything);
  const StackArchiveReader& archive = reader->archive();
  OpenModel model;
  model.form = ModelForm::stack_archive;
  model.path = path;
  model.file_bytes = archive.file_size();
  model.description = archive.state();
  model.state = reader->state();
  model.trainable = !archive.inference_only();
  for (std::size_t i = 0; i < archive.parameters().size(); ++i) {
    const StackTensor& tensor = archive.parameters()[i];
    model.tensors.push_back({tensor.name, tensor.shape, parameter_place(model.form, tensor.name, WeightFormat::float32),
                             std::string(dtype_name(tensor.dtype)), format_of(tensor.dtype), std::nullopt,
                             [reader, i] { return reader->weight(i); }});
    model.tensors.back().entry = tensor;
  }
  if (!model.state.training) return model;
  for (const StackTensor& tensor : archive.moments()) {
    model.moments.push_back({tensor.name, tensor.shape, moment_place(model.form, tensor.name),
                             std::string(dtype_name(tensor.dtype)), WeightFormat::float32, std::nullopt,
                             [reader, &tensor] {
                               Array array(tensor.dtype, tensor.shape);
                               reader->read(tensor, {static_cast<std::byte*>(array.data()), array.byte_size()});
                               return Weight(std::move(array));
                             }});
  }
  return model;
}

}  // namespace

namespace {

// Of a file: what lies beside the tokenizer that its sidecar names. A model whose tokenizer is gone goes without.
std::vector<Path> companions_of_file(const Path& path) {
  try {
    const Path tokenizer = tokenizer_of_checkpoint(path);
    return tokenizer.empty() ? std::vector<Path>{} : companion_files(tokenizer.parent_path());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::resource) throw;
    return {};
  }
}

}  // namespace

OpenModel open_own_model(ModelForm form, const Path& path, Reading reading) {
  OpenModel model = form == ModelForm::stack_archive ? open_stack(path, reading)
                    : form == ModelForm::folder      ? open_folder(path, reading)
                                                     : open_archive(path, reading);
  if (form != ModelForm::folder) {
    model.companions = companions_of_file(path);
    model.run = run_of_checkpoint(path);
    model.metrics = metrics_of_checkpoint(path);
  }
  return model;
}

}  // namespace samba
