#include "samba/train/model_folder.h"

#include <array>
#include <cstring>

#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/formats/safetensors.h"
#include "samba/formats/samba_archive.h"
#include "samba/numerics/float32.h"
#include "samba/train/state_dictionary.h"

namespace samba {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "samba.folder.v1";
constexpr std::array<const char*, 3> kPrefixes = {"", "exp_avg.", "exp_avg_sq."};
constexpr const char* kInitialized = "buf_initialized";

[[noreturn]] void refuse(const Path& path, const std::string& reason) {
  refuse_corrupt("folder", path.string() + ": " + reason);
}

std::array<Index, kArchiveArrays> counts_of(const Registry& registry) {
  const Index total = registry.total();
  return {total, total, total, static_cast<Index>(registry.tensors().size())};
}

MappedNames mapped_names(const Registry& registry) {
  MappedNames names;
  for (std::size_t array = 0; array < kPrefixes.size(); ++array) {
    for (const ParameterTensor& tensor : registry.tensors()) {
      names.emplace_back(
          std::string(archive_array_name(array)) + "/" + tensor.name,
          (array == 0 ? "model.safetensors/" : "optimizer.safetensors/") + (kPrefixes[array] + tensor.name));
    }
  }
  names.emplace_back(archive_array_name(kBufferInitialized), std::string("optimizer.safetensors/") + kInitialized);
  names.emplace_back("state", "config.json/state");
  return names;
}

// The floats of one array as named views of its tensors.
void add_views(const Registry& registry, const std::vector<float>& values, const std::string& prefix,
               ConstArrayMap& views) {
  for (const ParameterTensor& tensor : registry.tensors()) {
    views.emplace(prefix + tensor.name, ConstArray{DType::float32, tensor.shape, values.data() + tensor.offset});
  }
}

// Moves the tensors `prefix + NAME` out of `file` into one flat array.
std::vector<float> take_floats(SafetensorsFile& file, const Path& path, const Registry& registry,
                               const std::string& prefix, bool finite) {
  std::vector<float> values(static_cast<std::size_t>(registry.total()));
  for (const ParameterTensor& tensor : registry.tensors()) {
    const std::string name = prefix + tensor.name;
    const auto found = file.tensors.find(name);
    if (found == file.tensors.end()) refuse(path, "the tensor " + name + " is missing");
    const Array& array = found->second;
    if (array.dtype() != DType::float32 || array.shape() != tensor.shape) {
      refuse(path, "the tensor " + name + " must be float32 " + shape_text(tensor.shape) + ", got " +
                       std::string(dtype_name(array.dtype())) + " " + shape_text(array.shape()));
    }
    const std::span<const float> floats = array.floats();
    for (std::size_t i = 0; finite && i < floats.size(); ++i) {
      if (!is_finite(floats[i])) refuse(path, "element " + std::to_string(i) + " of " + name + " is not finite");
    }
    std::copy(floats.begin(), floats.end(), values.begin() + tensor.offset);
    file.tensors.erase(found);
  }
  return values;
}

void refuse_rest(const SafetensorsFile& file, const Path& path) {
  if (!file.tensors.empty()) refuse(path, "the tensor " + file.tensors.begin()->first + " is none of this model");
}

PieceReader reader_of(const void* data) {
  return [data](std::uint64_t first, void* to, std::size_t bytes) {
    std::memcpy(to, static_cast<const char*>(data) + first, bytes);
  };
}

PieceWriter writer_to(void* data) {
  return [data](std::uint64_t first, const void* from, std::size_t bytes) {
    std::memcpy(static_cast<char*>(data) + first, from, bytes);
  };
}

}  // namespace

bool is_model_folder(const Path& folder) {
  return fs::is_directory(folder) && fs::exists(folder / "model.safetensors");
}

MappedNames archive_to_folder(const Path& archive, const Path& folder, bool dry_run) {
  SambaArchiveReader reader(archive);
  const std::string source = archive.string();
  const SambaConfig config = parse_state_config(reader.state(), source);
  const Registry registry = parse_state_registry(reader.state(), config, source);
  check_state_metadata(reader.state(), source);
  const auto counts = counts_of(registry);
  reader.check_arrays(counts);
  std::array<std::vector<float>, 3> values;
  for (auto& array : values) array.resize(static_cast<std::size_t>(registry.total()));
  std::vector<std::int32_t> initialized(registry.tensors().size());
  reader.read_arrays({writer_to(values[0].data()), writer_to(values[1].data()), writer_to(values[2].data()),
                      writer_to(initialized.data())});
  if (dry_run) return mapped_names(registry);

  std::error_code error;
  fs::create_directories(folder, error);
  if (error) refuse_value("cannot create the folder " + folder.string() + ": " + error.message());
  if (!fs::is_empty(folder)) refuse_value(folder.string() + " is not empty; give a new folder");
  ConstArrayMap model;
  add_views(registry, values[0], kPrefixes[0], model);
  write_safetensors(folder / "model.safetensors", model, {{"format", kFormat}});
  ConstArrayMap optimizer;
  add_views(registry, values[1], kPrefixes[1], optimizer);
  add_views(registry, values[2], kPrefixes[2], optimizer);
  optimizer.emplace(kInitialized,
                    ConstArray{DType::int32, {static_cast<Index>(initialized.size())}, initialized.data()});
  write_safetensors(folder / "optimizer.safetensors", optimizer, {{"format", kFormat}});
  nlohmann::ordered_json description;
  description["format"] = kFormat;
  description["model_type"] = "samba";
  description["state"] = reader.state();
  write_file_atomically(folder / "config.json", description.dump(2) + "\n");
  return mapped_names(registry);
}

MappedNames folder_to_archive(const Path& folder, const Path& archive, bool dry_run) {
  const Path config_path = folder / "config.json";
  const nlohmann::json description = parse_json(read_file(config_path), config_path.string());
  const JsonFields fields(description, config_path.string(), {"format", "model_type", "state"});
  fields.required("format");
  fields.choice("format", "", {kFormat});
  const nlohmann::json& state = fields.required("state");
  const std::string source = config_path.string();
  const SambaConfig config = parse_state_config(state, source);
  const Registry registry = parse_state_registry(state, config, source);
  check_state_metadata(state, source);

  const Path model_path = folder / "model.safetensors";
  SafetensorsFile model = read_safetensors(model_path);
  const std::vector<float> parameters = take_floats(model, model_path, registry, kPrefixes[0], true);
  refuse_rest(model, model_path);
  const Path optimizer_path = folder / "optimizer.safetensors";
  SafetensorsFile optimizer = read_safetensors(optimizer_path);
  const std::vector<float> exp_avg = take_floats(optimizer, optimizer_path, registry, kPrefixes[1], false);
  const std::vector<float> exp_avg_sq = take_floats(optimizer, optimizer_path, registry, kPrefixes[2], false);
  const auto initialized = optimizer.tensors.find(kInitialized);
  const Shape shape{static_cast<Index>(registry.tensors().size())};
  if (initialized == optimizer.tensors.end() || initialized->second.dtype() != DType::int32 ||
      initialized->second.shape() != shape) {
    refuse(optimizer_path, std::string("needs a tensor ") + kInitialized + ", int32 " + shape_text(shape));
  }
  const Array flags = std::move(initialized->second);
  optimizer.tensors.erase(initialized);
  refuse_rest(optimizer, optimizer_path);
  if (!dry_run) {
    write_samba_archive(archive, state, counts_of(registry),
                        {reader_of(parameters.data()), reader_of(exp_avg.data()), reader_of(exp_avg_sq.data()),
                         reader_of(flags.data())});
  }
  return mapped_names(registry);
}

}  // namespace samba
