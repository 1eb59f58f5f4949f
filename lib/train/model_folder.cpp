#include "samba/train/model_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/core/mapped_file.h"
#include "samba/core/temporaries.h"
#include "samba/formats/canonical_json.h"
#include "samba/formats/file_hashes.h"
#include "samba/formats/safetensors.h"
#include "samba/formats/stack_archive.h"
#include "samba/formats/stack_weight.h"
#include "samba/model/weight_source.h"
#include "samba/train/stack_checkpoint.h"

namespace samba {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

[[noreturn]] void refuse(const Path& path, const std::string& reason) {
  refuse_corrupt("folder", path.string() + ": " + reason);
}

Json read_description(const Path& path) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;
  const Json description = parse_json(read_file(path, kMostBytes), path.string());
  if (description.is_object() && !description.contains("format")) {
    refuse_value(path.string() + ": there is no key format, so this is no " + kFolderFormat +
                 " folder; folders of other programs are not read");
  }
  const JsonFields fields(description, path.string(), {"format", "model_type", "state", "run"});
  fields.required("format");
  fields.choice("format", "", {kFolderFormat});
  return fields.required("state");
}

// The weights of a file by registry name, checked against the registry: views of `arrays`.
ConstWeightMap find_weights(const ConstArrayMap& arrays, const Path& path, const Registry& registry) {
  ConstWeightMap stored;
  try {
    stored = weights_of_stored(arrays);
  } catch (const Error& error) {
    refuse(path, error.what());
  }
  ConstWeightMap weights;
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
    weights.emplace(tensor.name, weight);
    stored.erase(found);
  }
  if (!stored.empty()) refuse(path, "the tensor " + stored.begin()->first + " is none of this model");
  return weights;
}

Weight copy_of(const ConstWeight& weight) {
  if (weight.is_packed()) return PackedWeight(weight.packed());
  return Array::from_floats(weight.shape(), {weight.array().floats(), static_cast<std::size_t>(weight.size())});
}

// The packed formats among the tensors of a file, one for every matrix.
std::vector<DType> packed_formats(const ConstArrayMap& arrays) {
  std::vector<DType> formats;
  for (const auto& [name, array] : arrays) {
    if (array.dtype == DType::uint16) formats.push_back(DType::bfloat16);
    if (array.dtype == DType::int8) formats.push_back(DType::int8);
  }
  return formats;
}

bool is_aligned(const ConstArrayMap& arrays) {
  return std::all_of(arrays.begin(), arrays.end(), [](const auto& entry) {
    return reinterpret_cast<std::uintptr_t>(entry.second.data) % dtype_size(entry.second.dtype) == 0;
  });
}

void refuse_non_finite(const Path& path, const std::string& name, const ConstWeight& weight) {
  const auto refuse_found = [&](const std::optional<Index>& found) {
    if (found) refuse(path, "element " + std::to_string(*found) + " of " + name + " is not finite");
  };
  if (!weight.is_packed()) {
    const auto* bytes = static_cast<const std::byte*>(weight.array().data);
    const auto size = static_cast<std::size_t>(weight.size()) * sizeof(float);
    return refuse_found(first_non_finite(DType::float32, weight.shape(), {bytes, size}));
  }
  const StackTensorSource source = stack_tensor_source(name, weight);
  std::vector<std::byte> raw(check_stack_tensor(name, source.dtype, source.shape, TensorRole::parameter));
  source.read(raw);
  refuse_found(first_non_finite(source.dtype, source.shape, raw));
}

// The moments of a file, checked: views of `arrays`.
ConstArrayMap find_moments(ConstArrayMap arrays, const Path& path, const Registry& registry, OptimizerKind kind) {
  ConstArrayMap moments;
  for (const MomentSpec& spec : moment_specs(registry, kind)) {
    const auto found = arrays.find(spec.name);
    if (found == arrays.end()) refuse(path, "the tensor " + spec.name + " is missing");
    const ConstArray array = found->second;
    if (array.dtype != spec.dtype || array.shape != spec.shape) {
      refuse(path, "the tensor " + spec.name + " must be " + std::string(dtype_name(spec.dtype)) + " " +
                       shape_text(spec.shape) + ", got " + std::string(dtype_name(array.dtype)) + " " +
                       shape_text(array.shape));
    }
    moments.emplace(spec.name, array);
    arrays.erase(found);
  }
  if (!arrays.empty()) refuse(path, "the tensor " + arrays.begin()->first + " is none of this model");
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
    if (error) throw_file_error("create the folder", path_, error.value());
    remember_temporary(path_);
  }
  ~StagingFolder() {
    std::error_code ignored;
    if (path_.empty()) return;
    fs::remove_all(path_, ignored);
    forget_temporary(path_);
  }
  StagingFolder(const StagingFolder&) = delete;
  StagingFolder& operator=(const StagingFolder&) = delete;

  const Path& path() const { return path_; }
  void move_to(const Path& target) {
    sync_folder(path_);
    std::error_code error;
    fs::rename(path_, target, error);  // an empty folder of this name gives way
    if (error) throw_file_error("create the folder", target, error.value());
    forget_temporary(path_);
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
  check_hashes(folder, HashedFiles::weights);
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
    const ConstArrayMap arrays(file.tensors.begin(), file.tensors.end());
    model.state = read_folder_state(state, source, reading, packed_formats(arrays), moments);
    for (const auto& [name, weight] : find_weights(arrays, model_path, Registry(model.state.config))) {
      model.weights.emplace(name, copy_of(weight));
    }
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
    SafetensorsFile file = read_safetensors(optimizer_path);
    find_moments({file.tensors.begin(), file.tensors.end()}, optimizer_path, registry,
                 model.state.training->optimizer.kind);
    model.moments = std::move(file.tensors);
  }
  return model;
}

std::shared_ptr<const MappedFolder> map_model_folder(const Path& folder, Reading reading) {
  check_hashes(folder, HashedFiles::weights);
  const Path config_path = folder / "config.json";
  const Path model_path = folder / "model.safetensors";
  const Path optimizer_path = folder / "optimizer.safetensors";
  const auto mapped = std::make_shared<MappedFolder>();
  mapped->description = read_description(config_path);
  mapped->trainable = fs::exists(optimizer_path);
  mapped->model = MappedFile(model_path);
  const ConstArrayMap arrays = index_safetensors(mapped->model.bytes(), model_path.string()).tensors;
  if (!is_aligned(arrays)) return nullptr;
  mapped->state =
      read_folder_state(mapped->description, config_path.string(), reading, packed_formats(arrays), mapped->trainable);
  const Registry registry(mapped->state.config);
  mapped->weights = find_weights(arrays, model_path, registry);
  mapped->file_bytes = fs::file_size(config_path) + fs::file_size(model_path);
  if (mapped->trainable) mapped->file_bytes += fs::file_size(optimizer_path);
  if (!mapped->state.training) return mapped;
  mapped->optimizer = MappedFile(optimizer_path);
  mapped->moments = find_moments(index_safetensors(mapped->optimizer.bytes(), optimizer_path.string()).tensors,
                                 optimizer_path, registry, mapped->state.training->optimizer.kind);
  return is_aligned(mapped->moments) ? mapped : nullptr;
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

namespace {

// The weights of a folder where they lie in the mapped file; pages go when they were read.
class MappedWeights final : public WeightSource {
 public:
  MappedWeights(const MappedFile& file, Path path, const ConstWeightMap& weights, const Registry& registry)
      : file_(file), path_(std::move(path)), weights_(weights), registry_(registry) {}
  WeightFormat format() const override { return weight_format(weights_); }
  ConstWeight open(std::size_t index) override {
    const std::string& name = registry_.tensors()[index].name;
    refuse_non_finite(path_, name, weights_.at(name));
    return weights_.at(name);
  }
  void release(std::size_t index) override {
    for (const auto& [name, array] : stored_arrays({{"w", weights_.at(registry_.tensors()[index].name)}})) {
      file_.drop({static_cast<const std::byte*>(array.data),
                  static_cast<std::size_t>(array.size()) * dtype_size(array.dtype)});
    }
  }

 private:
  const MappedFile& file_;
  Path path_;
  const ConstWeightMap& weights_;
  const Registry& registry_;
};

}  // namespace

std::unique_ptr<SambaStack> load_folder_for_inference(Executor& executor, const Path& folder) {
  const auto mapped = map_model_folder(folder, Reading::inference);
  if (mapped == nullptr) {
    const StoredModel model = read_model_folder(folder, Reading::inference);
    return std::make_unique<SambaStack>(executor, model.state.config, model.weights, SambaStack::Use::inference);
  }
  const Registry registry(mapped->state.config);
  MappedWeights source(mapped->model, folder / "model.safetensors", mapped->weights, registry);
  return std::make_unique<SambaStack>(executor, mapped->state.config, source);
}

}  // namespace samba
