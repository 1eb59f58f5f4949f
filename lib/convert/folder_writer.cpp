#include "samba/convert/folder_writer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "samba/convert/folder_run.h"
#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/formats/file_hashes.h"
#include "samba/formats/safetensors.h"
#include "samba/numerics/float32.h"
#include "samba/train/model_folder.h"

namespace samba {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;
using Put = std::function<void(std::span<const std::byte>)>;

std::span<const std::byte> bytes_of(const void* data, Index count, std::size_t width) {
  return {static_cast<const std::byte*>(data), static_cast<std::size_t>(count) * width};
}

// A piece as float32, or as bfloat16, which then holds it exactly.
void put_as(const WeightPiece& piece, DType dtype, const Put& put) {
  const auto count = static_cast<Index>(piece.values.size());
  if (dtype != DType::bfloat16) {
    if (!piece.weight.is_packed()) return put(bytes_of(piece.weight.array().data, count, sizeof(float)));
    const Array values = expand(piece.weight);
    return put(bytes_of(values.data(), count, sizeof(float)));
  }
  if (piece.weight.is_packed()) return put(bytes_of(piece.weight.packed().bits, count, 2));
  std::vector<std::uint16_t> bits(piece.values.size());
  std::transform(piece.values.begin(), piece.values.end(), bits.begin(),
                 [](float value) { return static_cast<std::uint16_t>(to_bits(value) >> 16); });
  put(bytes_of(bits.data(), count, 2));
}

// The tensors of a Hugging Face folder; those that are made of several of the registry's hold them one behind the
// other.
class HuggingFaceTensors {
 public:
  HuggingFaceTensors(const FolderPlan& plan, const OpenModel& model, const WeightReader& read,
                     const NarrowVectors& narrow) {
    const Registry registry(model.state.config);
    std::map<std::string, std::size_t> places;
    for (std::size_t i = 0; i < model.tensors.size(); ++i) {
      const ParameterTensor& target = registry.tensors()[i];
      const TensorPart part = huggingface_part(*plan.type, model.state.config, target);
      const auto [place, added] = places.emplace(part.tensor, tensors_.size());
      if (added) tensors_.push_back({part.tensor, part.shape, DType::bfloat16, {}});
      Whole& whole = tensors_[place->second];
      const bool matrix = target.shape.size() == 2;
      const bool small = matrix ? plan.format_of(model.tensors[i]) == WeightFormat::bfloat16
                                : std::binary_search(narrow.begin(), narrow.end(), target.name);
      if (!small) whole.dtype = DType::float32;
      whole.parts.emplace_back(part.first_row, &model.tensors[i]);
    }
    for (Whole& whole : tensors_) std::sort(whole.parts.begin(), whole.parts.end());
    // Wide values first: every tensor then begins at a multiple of its width.
    std::stable_sort(tensors_.begin(), tensors_.end(),
                     [](const Whole& a, const Whole& b) { return dtype_size(a.dtype) > dtype_size(b.dtype); });
    for (const Whole& whole : tensors_) {
      sources_.push_back({whole.name, whole.dtype, whole.shape, [&whole, &read](const Put& put) {
                            for (const auto& [row, tensor] : whole.parts) {
                              read(*tensor, [&](const WeightPiece& piece) { put_as(piece, whole.dtype, put); });
                            }
                          }});
    }
  }

  std::span<const SafetensorsSource> sources() const { return sources_; }

 private:
  struct Whole {
    std::string name;
    Shape shape;
    DType dtype;
    std::vector<std::pair<Index, const ModelTensor*>> parts;
  };

  std::vector<Whole> tensors_;
  std::vector<SafetensorsSource> sources_;
};

// samba's own names, packed weights as the arrays they are; in the order of the names.
std::vector<SafetensorsSource> own_sources(const FolderPlan& plan, const OpenModel& model, const WeightReader& read) {
  std::vector<SafetensorsSource> sources;
  const auto add = [&](const ModelTensor& tensor, const char* part, DType dtype, const Shape& shape, auto&& bytes) {
    sources.push_back({tensor.name + part, dtype, shape, [&tensor, &read, bytes](const Put& put) {
                         read(tensor, [&](const WeightPiece& piece) { put(bytes(piece.weight)); });
                       }});
  };
  for (const ModelTensor& tensor : model.tensors) {
    const WeightFormat format = plan.format_of(tensor);
    if (format == WeightFormat::float32) {
      add(tensor, "", DType::float32, tensor.shape,
          [](const ConstWeight& w) { return bytes_of(w.array().data, w.size(), sizeof(float)); });
    } else if (format == WeightFormat::bfloat16) {
      add(tensor, ".bits", DType::uint16, tensor.shape,
          [](const ConstWeight& w) { return bytes_of(w.packed().bits, w.size(), 2); });
    } else {
      add(tensor, ".codes", DType::int8, tensor.shape,
          [](const ConstWeight& w) { return bytes_of(w.packed().codes, w.size(), 1); });
      add(tensor, ".exponents", DType::int32, Shape{tensor.shape[0]},
          [](const ConstWeight& w) { return bytes_of(w.packed().exponents, w.packed().rows, 4); });
    }
  }
  std::sort(sources.begin(), sources.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return sources;
}

std::vector<SafetensorsSource> moment_sources(const OpenModel& model) {
  std::vector<SafetensorsSource> sources;
  for (const ModelTensor& moment : model.moments) {
    const DType dtype = moment.dtype == dtype_name(DType::int32) ? DType::int32 : DType::float32;
    sources.push_back({moment.name, dtype, moment.shape, [&moment](const Put& put) {
                         const HeldTensor held(moment);
                         const ConstWeight weight = held.view();
                         put(bytes_of(weight.array().data, weight.size(), dtype_size(weight.array().dtype)));
                       }});
  }
  std::sort(sources.begin(), sources.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return sources;
}

// The first type that holds the stack; `why` keeps the reason of the first one that has its kind of layers.
std::optional<HuggingFaceType> choose_type(const OpenModel& model, const std::string& dtype, const std::string& wanted,
                                           ordered_json& config, std::string& why) {
  why.clear();
  if (!wanted.empty()) {
    std::vector<std::string> names;
    for (const HuggingFaceType type : huggingface_types()) names.emplace_back(huggingface_type_name(type));
    if (std::find(names.begin(), names.end(), wanted) == names.end()) refuse_choice("--model-type", wanted, names);
  }
  for (const HuggingFaceType type : huggingface_types()) {
    if (!wanted.empty() && huggingface_type_name(type) != wanted) continue;
    std::string reason;
    if (auto found = huggingface_config(type, model.state.config, dtype, reason)) {
      config = std::move(*found);
      return type;
    }
    if (why.empty() || why.find(" has no ") != std::string::npos) why = reason;
  }
  return std::nullopt;
}

void copy_token_ids(const OpenModel& model, ordered_json& config) {
  if (model.form != ModelForm::huggingface_folder || !model.description.is_object()) return;
  for (const char* name : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (model.description.contains(name)) config[name] = model.description[name];
  }
}

}  // namespace

FolderPlan plan_folder(const OpenModel& model, WeightFormat format, FormatOf format_of, const std::string& wanted) {
  FolderPlan plan;
  plan.format_of = std::move(format_of);
  const std::string dtype(weight_format_name(format));
  if (format == WeightFormat::float32 || format == WeightFormat::bfloat16) {
    plan.type = choose_type(model, dtype, wanted, plan.config, plan.why_none);
  } else {
    plan.why_none = "transformers has no " + dtype + " weights of this kind";
  }
  if (!plan.type && !wanted.empty()) refuse_value("--model-type " + wanted + ": " + plan.why_none);
  const json state = folder_state_json(model.state, format);
  if (plan.type) {
    copy_token_ids(model, plan.config);
    plan.config["samba"] = {{"format", kFolderFormat}, {"state", state}};
  } else {
    plan.config = {{"format", kFolderFormat}, {"model_type", "samba"}, {"state", state}};
  }
  ordered_json& own = plan.type ? plan.config["samba"] : plan.config;
  plan.carries_run = model.state.training && !model.run.is_null();
  if (plan.carries_run) own["run"] = model.run;
  return plan;
}

std::string folder_place(const FolderPlan& plan, const OpenModel& model, const ModelTensor& tensor) {
  const std::string file = "model.safetensors/";
  if (plan.type) {
    const Index size = element_count(tensor.shape);
    const TensorPart part = huggingface_part(*plan.type, model.state.config, {tensor.name, tensor.shape, 0, size});
    if (part.whole) return file + part.tensor;
    const Index columns = element_count(part.shape) / part.shape[0];
    return file + part.tensor + "[" + std::to_string(part.first_row) + ":" +
           std::to_string(part.first_row + size / columns) + "]";
  }
  const WeightFormat format = plan.format_of(tensor);
  if (format == WeightFormat::bfloat16) return file + tensor.name + ".bits";
  if (format == WeightFormat::int8) return file + tensor.name + ".codes, " + tensor.name + ".exponents";
  return file + tensor.name;
}

void write_folder(const FolderPlan& plan, const OpenModel& model, const WeightReader& read, const NarrowVectors& narrow,
                  const Path& folder, const std::function<void(std::uint64_t)>& written) {
  // transformers asks for the framework that wrote a file.
  const std::map<std::string, std::string> metadata = {{"format", plan.type ? "pt" : kFolderFormat}};
  if (plan.type) {
    const HuggingFaceTensors tensors(plan, model, read, narrow);
    write_safetensors_streamed(folder / "model.safetensors", tensors.sources(), metadata, written);
  } else {
    write_safetensors_streamed(folder / "model.safetensors", own_sources(plan, model, read), metadata, written);
  }
  if (model.state.training) {
    write_safetensors_streamed(folder / "optimizer.safetensors", moment_sources(model), {{"format", kFolderFormat}});
  }
  for (const Path& file : model.companions) write_file_atomically(folder / file.filename(), read_file(file));
  for (const MadeFile& file : model.made_companions) write_file_atomically(folder / file.name, file.content());
  const std::string metrics = plan.carries_run ? metrics_until(model.metrics, model.state.step) : "";
  if (!metrics.empty()) write_file_atomically(folder / kMetricsName, metrics);
  write_file_atomically(folder / "config.json", plan.config.dump(2) + "\n");
  write_hashes(folder);
}

}  // namespace samba
