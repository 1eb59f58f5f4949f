#include "samba/convert/folder_model.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <utility>

#include "samba/convert/folder_run.h"
#include "samba/convert/foreign_config.h"
#include "samba/convert/mamba_ssm_config.h"
#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/formats/safetensors.h"
#include "samba/formats/stack_weight.h"
#include "samba/numerics/half.h"
#include "samba/numerics/low_bit.h"
#include "samba/train/model_folder.h"
#include "samba/train/stack_checkpoint.h"

namespace samba {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::array kCompanions = {
    "tokenizer.json",      "tokenizer.model",         "tokenizer_config.json", "vocab.json",
    "merges.txt",          "special_tokens_map.json", "added_tokens.json",     "generation_config.json",
    "chat_template.jinja", "chat_template.json"};

// Buffers of old checkpoints that follow from the configuration.
bool is_derived(const std::string& name) { return name.ends_with("rotary_emb.inv_freq"); }

bool is_aligned(const void* data, std::size_t to) { return reinterpret_cast<std::uintptr_t>(data) % to == 0; }

template <class T>
T value_at(const void* data, Index index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

// The values of a part of a tensor as float32; the bytes need not be aligned. Pages that were read are given back.
Array floats_of_part(DType dtype, const std::byte* data, const Shape& shape, const MappedFile& mapped) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  Array result = Array::zeros(shape);
  const std::span<float> values = result.floats();
  const std::size_t width = dtype_size(dtype);
  for (std::size_t first = 0; first < values.size(); first += kPiece) {
    const std::size_t count = std::min(kPiece, values.size() - first);
    if (dtype == DType::float32) std::memcpy(values.data() + first, data + first * width, count * width);
    for (std::size_t i = first; dtype != DType::float32 && i < first + count; ++i) {
      const auto bits = value_at<std::uint16_t>(data, static_cast<Index>(i));
      values[i] = dtype == DType::bfloat16 ? expand_bfloat16(bits) : expand_float16(bits);
    }
    mapped.drop({data + first * width, count * width});
  }
  return result;
}

Weight packed_of_part(const void* data, const Shape& shape) {
  Array bits(DType::uint16, shape);
  if (bits.byte_size() > 0) std::memcpy(bits.data(), data, bits.byte_size());
  return PackedWeight(std::move(bits));
}

ModelTensor model_tensor(const ParameterTensor& target, const TensorPart& part, const FileTensor& file) {
  ModelTensor tensor;
  tensor.name = target.name;
  tensor.shape = target.shape;
  tensor.source = file.file + "/" + part.tensor;
  const Index columns = part.shape.empty() || part.shape[0] == 0 ? 0 : element_count(part.shape) / part.shape[0];
  if (!part.whole) {
    tensor.source += "[" + std::to_string(part.first_row) + ":" +
                     std::to_string(part.first_row + (columns == 0 ? 0 : target.size / columns)) + "]";
  }
  const DType dtype = file.view.dtype;
  tensor.dtype = dtype_name(dtype);
  tensor.stored_bytes = static_cast<std::size_t>(target.size) * dtype_size(dtype);
  const auto* data = static_cast<const std::byte*>(file.view.data) +
                     static_cast<std::size_t>(part.first_row * columns) * dtype_size(dtype);
  const Shape shape = target.shape;
  // What was copied need not stay in memory twice.
  const auto done = [mapped = file.mapped, data, bytes = tensor.stored_bytes] { mapped->drop({data, bytes}); };
  tensor.drop = done;
  if (dtype == DType::bfloat16 && shape.size() == 2 && target.size > 0) {
    tensor.format = WeightFormat::bfloat16;
    if (is_aligned(data, alignof(std::uint16_t))) {
      tensor.view = ConstPackedWeight::of_bits({DType::uint16, shape, data});
    }
    tensor.load = [data, shape, done] {
      Weight weight = packed_of_part(data, shape);
      done();
      return weight;
    };
    return tensor;
  }
  if (dtype == DType::float32 && is_aligned(data, alignof(float))) tensor.view = ConstArray{dtype, shape, data};
  tensor.load = [dtype, data, shape, mapped = file.mapped] {
    return Weight(floats_of_part(dtype, data, shape, *mapped));
  };
  return tensor;
}

// A head beside an embedding that it should be: the same values, or it is refused.
void check_tied(const Path& folder, const std::string& head, const FileTensor& head_tensor,
                const std::string& embedding, const FileTensor& tensor) {
  const ConstArray& a = head_tensor.view;
  const ConstArray& b = tensor.view;
  const std::size_t bytes = static_cast<std::size_t>(a.size()) * dtype_size(a.dtype);
  const bool same = a.dtype == b.dtype && a.shape == b.shape &&
                    (a.data == b.data || bytes == 0 || std::memcmp(a.data, b.data, bytes) == 0);
  if (same) return;
  refuse_value(folder.string() + ": " + head + " differs from " + embedding +
               ", but the configuration says that they are tied");
}

}  // namespace

std::vector<ModelTensor> take_tensors(const Path& folder, const TensorFiles& files, const StackConfig& config,
                                      const std::function<TensorPart(const ParameterTensor&)>& part_of) {
  const Registry registry(config);
  std::map<std::string, FileTensor> left = files.tensors;
  std::erase_if(left, [](const auto& entry) { return is_derived(entry.first); });
  const std::string embedding = part_of(registry.tensors().front()).tensor;
  const std::string head = "lm_head.weight";
  if (config.tie_embeddings && left.contains(head)) {
    // A file of tied weights may keep either name.
    if (!left.contains(embedding)) left.emplace(embedding, left.at(head));
    check_tied(folder, head, left.at(head), embedding, left.at(embedding));
    left.erase(head);
  }
  std::vector<ModelTensor> tensors;
  std::set<std::string> used;
  for (const ParameterTensor& target : registry.tensors()) {
    const TensorPart part = part_of(target);
    const auto found = left.find(part.tensor);
    if (found == left.end()) refuse_value(folder.string() + ": the tensor " + part.tensor + " is missing");
    const ConstArray& view = found->second.view;
    const bool known = view.dtype == DType::float32 || view.dtype == DType::float16 || view.dtype == DType::bfloat16;
    if (!known || view.shape != part.shape) {
      refuse_value(folder.string() + ": the tensor " + part.tensor + " is " + std::string(dtype_name(view.dtype)) +
                   " " + shape_text(view.shape) + "; accepted: float32, float16 or bfloat16 " + shape_text(part.shape));
    }
    used.insert(part.tensor);
    tensors.push_back(model_tensor(target, part, found->second));
  }
  for (const auto& [name, tensor] : left) {
    if (!used.contains(name)) {
      refuse_value(folder.string() + ": the tensor " + name + " (" + tensor.file +
                   ") is unknown; the model computes something that samba does not");
    }
  }
  return tensors;
}

std::vector<Path> companion_files(const Path& folder) {
  std::vector<Path> found;
  for (const char* name : kCompanions) {
    if (fs::is_regular_file(folder / name)) found.push_back(folder / name);
  }
  return found;
}

json read_folder_config(const Path& folder) {
  const Path path = folder / "config.json";
  if (!fs::exists(path)) refuse_value(folder.string() + " has no config.json, which says what its tensors are");
  return read_foreign_json(path);
}

namespace {

OpenModel open_folder(const Path& folder, ModelForm form, json description, const StackConfig& config,
                      const std::function<TensorPart(const ParameterTensor&)>& part_of) {
  const auto files = std::make_shared<TensorFiles>(open_tensor_files(folder));
  OpenModel model;
  model.form = form;
  model.path = folder;
  model.file_bytes = files->bytes + fs::file_size(folder / "config.json");
  model.description = std::move(description);
  model.state.config = config;
  model.tensors = take_tensors(folder, *files, config, part_of);
  model.companions = companion_files(folder);
  model.keeper = files;
  return model;
}

}  // namespace

namespace {

// The state under "samba" of a folder that samba wrote; its configuration must be that of the other fields.
void read_state(OpenModel& model, const StackConfig& described, Reading reading) {
  const Path path = model.path / "config.json";
  const Path optimizer = model.path / "optimizer.safetensors";
  const json& own = model.description["samba"];
  const JsonFields fields(own, path.string() + ": /samba", {"format", "state", "run"});
  fields.required("format");
  fields.choice("format", "", {kFolderFormat});
  const bool moments = fs::exists(optimizer);
  std::vector<DType> formats;
  for (const ModelTensor& tensor : model.tensors) formats.push_back(stored_dtype(tensor.format));
  model.state = read_folder_state(fields.required("state"), path.string(), reading, formats, moments);
  const std::string difference = first_config_difference(described, model.state.config);
  if (!difference.empty()) {
    refuse_corrupt("folder",
                   path.string() + ": /samba/state/config is another model than the other fields: " + difference);
  }
  model.trainable = moments;
  model.run = own.value("run", json());
  model.metrics = model.path / kMetricsName;
  if (moments) model.file_bytes += fs::file_size(optimizer);
  if (!model.state.training) return;
  const auto file = std::make_shared<const MappedFile>(optimizer);
  ConstArrayMap stored = index_safetensors(file->bytes(), optimizer.string()).tensors;
  for (const MomentSpec& spec : moment_specs(Registry(model.state.config), model.state.training->optimizer.kind)) {
    const auto found = stored.find(spec.name);
    if (found == stored.end() || found->second.dtype != spec.dtype || found->second.shape != spec.shape) {
      refuse_corrupt("folder", optimizer.string() + ": the tensor " + spec.name + " must be there as " +
                                   std::string(dtype_name(spec.dtype)) + " " + shape_text(spec.shape));
    }
    const ConstArray view = found->second;
    model.moments.push_back({spec.name, spec.shape, "optimizer.safetensors/" + spec.name,
                             std::string(dtype_name(spec.dtype)), WeightFormat::float32, std::nullopt, [file, view] {
                               Array array(view.dtype, view.shape);
                               if (array.byte_size() > 0) std::memcpy(array.data(), view.data, array.byte_size());
                               return Weight(std::move(array));
                             }});
    stored.erase(found);
  }
  if (!stored.empty()) {
    refuse_corrupt("folder", optimizer.string() + ": the tensor " + stored.begin()->first + " is none of this model");
  }
}

}  // namespace

OpenModel open_huggingface_folder(const Path& folder, Reading reading) {
  json description = read_folder_config(folder);
  const HuggingFaceConfig config = parse_huggingface_config(description, (folder / "config.json").string());
  OpenModel model =
      open_folder(folder, ModelForm::huggingface_folder, std::move(description), config.stack,
                  [&](const ParameterTensor& tensor) { return huggingface_part(config.type, config.stack, tensor); });
  if (model.description.contains("samba")) read_state(model, config.stack, reading);
  return model;
}

OpenModel open_mamba_ssm_folder(const Path& folder) {
  json description = read_folder_config(folder);
  const StackConfig config = parse_mamba_ssm_config(description, (folder / "config.json").string());
  return open_folder(folder, ModelForm::mamba_ssm_folder, std::move(description), config,
                     [&](const ParameterTensor& tensor) { return mamba_ssm_part(config, tensor); });
}

}  // namespace samba
