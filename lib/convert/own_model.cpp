#include "samba/convert/own_model.h"

#include <cstring>
#include <utility>

#include "samba/convert/folder_model.h"
#include "samba/convert/folder_run.h"
#include "samba/core/error.h"
#include "samba/formats/stack_weight.h"
#include "samba/text/model_text.h"
#include "samba/train/stack_checkpoint.h"

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
  }
  model.keeper = stored;
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
  }
  if (!model.state.training) return model;
  for (const StackTensor& tensor : archive.moments()) {
    model.moments.push_back({tensor.name, tensor.shape, moment_place(model.form, tensor.name),
                             std::string(dtype_name(tensor.dtype)), WeightFormat::float32, std::nullopt,
                             [reader, &tensor] {
                               const std::vector<std::byte> raw = reader->read(tensor);
                               Array array(tensor.dtype, tensor.shape);
                               std::memcpy(array.data(), raw.data(), raw.size());
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
  OpenModel model = form == ModelForm::stack_archive ? open_stack(path, reading) : open_whole(path, reading);
  if (form != ModelForm::folder) {
    model.companions = companions_of_file(path);
    model.run = run_of_checkpoint(path);
  }
  return model;
}

}  // namespace samba
