#include "samba/convert/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "samba/convert/gguf_config.h"
#include "samba/convert/gguf_vocabulary.h"
#include "samba/core/error.h"
#include "samba/formats/gguf_file.h"
#include "samba/numerics/block_weight.h"
#include "samba/numerics/elementary.h"

namespace samba {

namespace {

// The axes that are longer than 1.
Shape without_ones(const Shape& shape) {
  Shape result;
  std::copy_if(shape.begin(), shape.end(), std::back_inserter(result), [](Index size) { return size != 1; });
  return result;
}

[[noreturn]] void refuse_element(const std::string& source, std::size_t element, const std::string& reason) {
  refuse_value(source + ": element " + std::to_string(element) + " " + reason);
}

// w of a stored 1 + w, such that adding gives the stored value again.
void subtract_one(const std::string& source, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float stored = values[i];
    values[i] = stored - 1.0F;
    if (1.0F + values[i] != stored) refuse_element(source, i, "is no 1 + w of a float32 w; gemma's norms are");
  }
}

void take_logarithms(const std::string& source, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float rate = -values[i];
    if (!(rate >= kMinNormal && is_finite(rate))) {
      refuse_element(source, i, "must be negative and finite: it is -exp(A_log)");
    }
    values[i] = log_of_rate(rate);
  }
}

// A vector with the halves of every head put one behind the other.
Array in_halves(const Array& from, Index head) {
  Array to = Array::zeros(from.shape());
  const Index rows = from.shape()[0], width = from.size() / rows;
  for (Index row = 0; row < rows; ++row) {
    std::copy_n(from.floats().data() + interleaved_row(row, head) * width, width, to.floats().data() + row * width);
  }
  return to;
}

// The tensor as the registry has it.
Array expanded(const std::string& source, const GgufTensor& tensor, const GgufTensorPlace& place) {
  Array values = Array::zeros(place.registry_shape);
  const Index columns = tensor.shape.back(), rows = values.size() / columns;
  const bool float32 = tensor.format == WeightFormat::float32;
  const bool halves = place.change == GgufChange::interleaved_halves;
  const bool rows_move = halves && place.registry_shape.size() == 2;
  const std::size_t bytes =
      float32 ? static_cast<std::size_t>(columns) * sizeof(float) : block_row_bytes(tensor.format, columns);
  float* to = values.floats().data();
  for (Index i = 0; i < rows; ++i, to += columns) {
    const Index at = rows_move ? interleaved_row(i, place.head) : i;
    const std::byte* row = tensor.bytes.data() + static_cast<std::size_t>(at) * bytes;
    if (float32) {
      std::memcpy(to, row, bytes);
    } else {
      expand_block_row(tensor.format, row, columns, to);
    }
  }
  if (halves && !rows_move) return in_halves(values, place.head);
  if (place.change == GgufChange::one_added) subtract_one(source, values.floats());
  if (place.change == GgufChange::decay_rate) take_logarithms(source, values.floats());
  return values;
}

// A BF16 matrix as the registry has it, with its bits.
Weight bits_of(const GgufTensor& tensor, const GgufTensorPlace& place) {
  Array bits(DType::uint16, place.registry_shape);
  const Index rows = place.registry_shape[0];
  const std::size_t row_bytes = bits.byte_size() / static_cast<std::size_t>(rows);
  for (Index row = 0; row < rows; ++row) {
    const Index from = place.head == 0 ? row : interleaved_row(row, place.head);
    std::memcpy(static_cast<std::byte*>(bits.data()) + static_cast<std::size_t>(row) * row_bytes,
                tensor.bytes.data() + static_cast<std::size_t>(from) * row_bytes, row_bytes);
  }
  return PackedWeight(std::move(bits));
}

ModelTensor model_tensor(const std::shared_ptr<const GgufFile>& file, const GgufTensorPlace& place) {
  const std::string path = file->path().string();
  const GgufTensor* const tensor = file->find(place.name);
  if (tensor == nullptr) refuse_value(path + ": the tensor " + place.name + " is missing");
  if (without_ones(tensor->shape) != without_ones(place.shape)) {
    refuse_value(path + ": tensor " + place.name + " must have the shape " + shape_text(place.shape) + ", got " +
                 shape_text(tensor->shape));
  }
  ModelTensor result;
  result.name = place.registry;
  result.shape = place.registry_shape;
  result.source = file->path().filename().string() + "/" + place.name;
  result.dtype = gguf_type_name(tensor->format);
  result.stored_bytes = tensor->bytes.size();
  const std::string source = path + ": tensor " + place.name;
  result.load = [file, tensor, place, source] { return Weight(expanded(source, *tensor, place)); };
  result.drop = [file, tensor] { file->file().drop(tensor->bytes); };
  const bool rows_alone = place.change == GgufChange::none || place.change == GgufChange::interleaved_halves;
  if (place.registry_shape.size() != 2 || tensor->shape != place.registry_shape || !rows_alone) return result;
  if (tensor->format != WeightFormat::float32) {
    ConstPackedWeight view = ConstPackedWeight::of_blocks(tensor->format, place.registry_shape[0],
                                                          place.registry_shape[1], tensor->bytes.data(), file);
    view.interleaved_head = place.head;
    result.view = view;
    if (tensor->format == WeightFormat::bfloat16) {
      result.format = WeightFormat::bfloat16;
      result.load = [file, tensor, place] { return bits_of(*tensor, place); };
    }
  } else if (place.head == 0 && reinterpret_cast<std::uintptr_t>(tensor->bytes.data()) % alignof(float) == 0) {
    result.view = ConstArray{DType::float32, place.registry_shape, tensor->bytes.data()};
  }
  return result;
}

// Everything but long lists, of which the length is given.
nlohmann::json described(const GgufMetadata& metadata) {
  constexpr std::size_t kMostShown = 16;
  const auto list = [](const auto& values) {
    if (values.size() <= kMostShown) return nlohmann::json(values);
    return nlohmann::json{{"length", values.size()}};
  };
  const auto shown = [&](const GgufValue& value) -> nlohmann::json {
    switch (value.kind) {
      case GgufValue::Kind::text:
        return value.text;
      case GgufValue::Kind::integer:
        return value.integer;
      case GgufValue::Kind::number:
        return value.number;
      case GgufValue::Kind::texts:
        return list(value.texts);
      case GgufValue::Kind::integers:
        return list(value.integers);
      case GgufValue::Kind::numbers:
        return list(value.numbers);
    }
    return nullptr;
  };
  nlohmann::json result = nlohmann::json::object();
  for (const auto& [name, value] : metadata) result[name] = shown(value);
  return result;
}

void refuse_other_tensors(const GgufFile& file, const std::vector<GgufTensorPlace>& places) {
  std::set<std::string> known{"rope_freqs.weight"};
  for (const GgufTensorPlace& place : places) known.insert(place.name);
  for (const GgufTensor& tensor : file.tensors()) {
    if (!known.contains(tensor.name)) {
      refuse_unsupported(file.path().string() + ": the tensor " + tensor.name +
                         " has no place in a stack of this architecture");
    }
  }
}

}  // namespace

float log_of_rate(float rate) {
  const auto error_of = [rate](float log) { return std::fabs(flush(elementary::exp(flush(log))) - rate); };
  float best = static_cast<float>(std::log(static_cast<double>(rate)));
  float least = error_of(best);
  float below = best, above = best;
  for (int step = 0; step < 4 && least != 0.0F; ++step) {
    below = std::nextafter(below, -kInfinity);
    above = std::nextafter(above, kInfinity);
    for (const float candidate : {below, above}) {
      const float error = error_of(candidate);
      if (error >= least) continue;
      least = error;
      best = candidate;
    }
  }
  return best;
}

OpenModel open_gguf(const Path& path) {
  const auto file = std::make_shared<const GgufFile>(path);
  const GgufModelConfig read = read_gguf_config(*file);
  const std::vector<GgufTensorPlace> places = gguf_tensor_places(read.architecture, read.config);
  refuse_other_tensors(*file, places);
  OpenModel model;
  model.form = ModelForm::gguf_file;
  model.path = path;
  model.file_bytes = file->size();
  model.description = described(file->metadata());
  model.state.config = read.config;
  for (const GgufTensorPlace& place : places) model.tensors.push_back(model_tensor(file, place));
  model.made_companions = tokenizer_files_of_gguf(file);
  model.keeper = file;
  return model;
}

}  // namespace samba
