#include "samba/train/model_folder.h"

#include <unistd.h>

#include <cstring>

#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/formats/canonical_json.h"
#include "samba/formats/safetensors.h"
#include "samba/formats/stack_archive.h"
#include "samba/formats/stack_weight.h"
#include "samba/train/stack_checkpoint.h"

namespace samba {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

[[noreturn]] void refuse(const Path& path, const std::string& reason) {
  refuse_corrupt("folder", path.string() + ": " + reason);
}

Json read_description(const Path& path) {
  const Json description = parse_json(read_file(path), path.string());
  if (description.is_object() && !description.contains("format")) {
    refuse_value(path.string() + ": there is no key format, so this is no " + kFolderFormat +
                 " folder; folders of other programs are not read");
  }
  const JsonFields fields(description, path.string(), {"format", "model_type", "state", "run"});
  fields.required("format");
  fields.choice("format", "", {kFolderFormat});
  return fields.required("state");
}

// The weights of the file by registry name, checked against the registry.
WeightMap take_weights(const SafetensorsFile& file, const Path& path, const Registry& registry) {
  ConstArrayMap arrays(file.tensors.begin(), file.tensors.end());
  ConstWeightMap stored;
  try {
    stored = weights_of_stored(arrays);
  } catch (const Error& error) {
    refuse(path, error.what());
  }
  WeightMap weights;
  for (const ParameterTensor& tensor : registry.tensors()) {
    const auto found = stored.find(tensor.name);
    if (found == stored.end()) refuse(path, "the tensor " + tensor.name + " is missing");
    const ConstWeight& weight = found->second;
    if (!weight.is_packed() && weight.array().dtype != DType::float32) {
      refuse(path, "the tensor " + tensor.name + " must be float32 " + shape_text(tensor.shape) + ", got " +
                       std::string(dtype_name(weight.array().dtype)) + " " + shape_text(weight.shape()));
    }
    if (weight.shape() != tensor.shape) {
      refuse(path, "the tensor " + tensor.name + " must be " + std::string(weight_format_name(weight.format())) + " " +
                       shape_text(tensor.shape) + ", got " + std::string(weight_format_name(weight.format())) + " " +
                       shape_text(weight.shape()));
    }
    weights.emplace(tensor.name,
                    weight.is_packed()
                        ? Weight(PackedWeight(weight.packed()))
                        : Weight(Array::from_floats(tensor.shape,
                                                    {weight.array().floats(), static_cast<std::size_t>(tensor.size)})));
    stored.erase(found);
  }
  if (!stored.empty()) refuse(path, "the tensor " + stored.begin()->first + " is none of this model");
  return weights;
}

void refuse_non_finite(const Path& path, const std::string& name, const Weight& weight) {
  const StackTensorSource source = stack_tensor_source(name, weight);
  std::vector<std::byte> raw(check_stack_tensor(name, source.dtype, source.shape, TensorRole::parameter));
  source.read(raw);
  if (const auto found = first_non_finite(source.dtype, source.shape, raw)) {
    refuse(path, "element " + std::to_string(*found) + " of " + name + " is not finite");
  }
}

ArrayMap take_moments(SafetensorsFile file, const Path& path, const Registry& registry, OptimizerKind kind) {
  ArrayMap moments;
  for (const MomentSpec& spec : moment_specs(registry, kind)) {
    const auto found = file.tensors.find(spec.name);
    if (found == file.tensors.end()) refuse(path, "the tensor " + spec.name + " is missing");
    Array& array = found->second;
    if (array.dtype() != spec.dtype || array.shape() != spec.shape) {
      refuse(path, "the tensor " + spec.name + " must be " + std::string(dtype_name(spec.dtype)) + " " +
                       shape_text(spec.shape) + ", got " + std::string(dtype_name(array.dtype())) + " " +
                       shape_text(array.shape()));
    }
    moments.emplace(spec.name, std::move(array));
    file.tensors.erase(found);
  }
  if (!file.tensors.empty()) {
    refuse(path, "the tensor " + file.tensors.begin()->first + " is none of this model");
  }
  return moments;
}

// Files written here go away unless keep() was called.
class StagingFolder {
 public:
  explicit StagingFolder(const Path& target) : path_(target) {
    path_ += ".tmp-" + std::to_string(::getpid());
    std::error_code error;
    fs::remove_all(path_, error);
    fs::create_directories(path_, error);
    if (error) refuse_value("cannot create the folder " + path_.string() + ": " + error.message());
  }
  ~StagingFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  StagingFolder(const StagingFolder&) = delete;
  StagingFolder& operator=(const StagingFolder&) = delete;

  const Path& path() const { return path_; }
  void move_to(const Path& target) {
    sync_folder(path_);
    std::error_code error;
    fs::rename(path_, target, error);  // an empty folder of this name gives way
    if (error) refuse_value("cannot create the folder " + target.string() + ": " + error.message());
    path_.clear();
    const Path parent = target.parent_path();
    sync_folder(parent.empty() ? Path(".") : parent);
  }

 private:
  Path path_;
};

Path without_slash(const Path& folder) { return folder.filename().empty() ? folder.parent_path() : folder; }

}  // namespace

bool is_model_folder(const Path& folder) {
  return fs::is_directory(folder) && fs::exists(folder / "model.safetensors");
}

ModelState read_folder_state(const Json& state, const std::string& source, Reading reading,
                             std::span<const DType> formats, bool moments) {
  const bool everything = reading == Reading::everything;
  if (state.is_object() && state.value("schema", Json()) == kStackStateSchema) {
    const StackStateFault fault = find_stack_state_fault(state, formats, moments);
    if (!fault.error_class.empty()) refuse_corrupt(fault.error_class, source + ": " + fault.reason);
    return parse_stack_state(state, source, everything);
  }
  ModelState parsed;
  parsed.config = parse_state_config(state, source);
  parse_state_registry(state, *parsed.config.samba, source);
  check_state_metadata(state, source);
  if (!moments) refuse(source, "the model is in training, but there is no file optimizer.safetensors");
  for (const DType dtype : formats) {
    if (dtype != DType::float32) refuse(source, "a model in training has float32 weights");
  }
  parsed.step = state["t"].get<Index>();
  if (everything) parsed.training = parse_training_state(state, source);
  return parsed;
}

Json folder_state_json(const ModelState& state, WeightFormat format) {
  const bool samba = fits_samba_archive(state) && format == WeightFormat::float32;
  return samba ? samba_state_json(state) : stack_state_json(state, format);
}

StoredModel read_model_folder(const Path& folder, Reading reading) {
  const Path config_path = folder / "config.json";
  const Path model_path = folder / "model.safetensors";
  const Path optimizer_path = folder / "optimizer.safetensors";
  const std::string source = config_path.string();
  const Json state = read_description(config_path);
  const bool moments = fs::exists(optimizer_path);
  StoredModel model;
  model.form = ModelForm::folder;
  model.description = state;
  model.file_bytes = fs::file_size(config_path) + fs::file_size(model_path);
  {
    const SafetensorsFile file = read_safetensors(model_path);
    std::vector<DType> formats;
    for (const auto& [name, array] : file.tensors) {
      if (array.dtype() == DType::uint16) formats.push_back(DType::bfloat16);
      if (array.dtype() == DType::int8) formats.push_back(DType::int8);
    }
    model.state = read_folder_state(state, source, reading, formats, moments);
    model.weights = take_weights(file, model_path, Registry(model.state.config));
  }
  const Registry registry(model.state.config);
  for (const ParameterTensor& tensor : registry.tensors()) {
    const Weight& weight = model.weights.at(tensor.name);
    refuse_non_finite(model_path, tensor.name, weight);
    model.tensors.push_back(describe_weight(tensor.name, weight));
  }
  model.trainable = moments;
  if (moments) model.file_bytes += fs::file_size(optimizer_path);
  if (model.state.training) {
    model.moments =
        take_moments(read_safetensors(optimizer_path), optimizer_path, registry, model.state.training->optimizer.kind);
  }
  return model;
}

void check_new_folder(const Path& folder) {
  if (!fs::exists(fs::symlink_status(folder))) return;
  if (!fs::is_directory(folder)) refuse_value(folder.string() + " is a file; a folder is needed");
  if (!fs::is_empty(folder)) refuse_value(folder.string() + " is not empty; give a new folder");
}

void write_new_folder(const Path& folder, const std::function<void(const Path&)>& fill) {
  check_new_folder(folder);
  const Path target = without_slash(folder);
  StagingFolder staging(target);
  fill(staging.path());
  staging.move_to(target);
}

std::unique_ptr<SambaStack> load_folder_for_inference(Executor& executor, const Path& folder) {
  const StoredModel model = read_model_folder(folder, Reading::inference);
  return std::make_unique<SambaStack>(executor, model.state.config, model.weights, SambaStack::Use::inference);
}

}  // namespace samba
