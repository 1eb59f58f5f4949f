#include "samba/train/convert.h"

#include <algorithm>
#include <cmath>

#include "samba/core/error.h"
#include "samba/formats/stack_weight.h"
#include "samba/numerics/float32.h"
#include "samba/train/model_folder.h"

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

// The largest difference between two forms of a weight. Error(value) when the new one is not finite.
double rounding_error(const std::string& name, const ConstWeight& before, const ConstWeight& after) {
  const Array old_values = expand(before);
  const Array new_values = expand(after);
  double largest = 0.0;
  for (std::size_t i = 0; i < new_values.floats().size(); ++i) {
    const float value = new_values.floats()[i];
    if (!is_finite(value)) {
      refuse_value("--dtype " + std::string(weight_format_name(after.format())) + ": element " + std::to_string(i) +
                   " of " + name + " is " + std::to_string(old_values.floats()[i]) + ", which rounds to infinity");
    }
    largest = std::max(largest, std::fabs(static_cast<double>(value) - static_cast<double>(old_values.floats()[i])));
  }
  return largest;
}

// Brings the weights into `format`; returns the rounding errors in registry order.
std::vector<std::optional<double>> change_format(StoredModel& model, std::optional<WeightFormat> format) {
  std::vector<std::optional<double>> errors;
  for (const StackTensor& tensor : model.tensors) {
    Weight& weight = model.weights.at(tensor.name);
    errors.emplace_back();
    // Only matrices are packed; a weight that is packed otherwise is expanded first.
    if (!format || weight.format() == *format || tensor.shape.size() != 2) continue;
    Weight changed = pack_one(weight, *format, tensor.name);
    errors.back() = rounding_error(tensor.name, weight, changed);
    weight = std::move(changed);
  }
  return errors;
}

}  // namespace

Conversion convert_model(const Path& in, const Path& out, const ConvertOptions& options) {
  if (options.target == ConvertTarget::folder) check_new_folder(out);
  if (options.target == ConvertTarget::file && std::filesystem::is_directory(out)) {
    refuse_value("OUT " + out.string() + " is a folder; a .samba file is needed");
  }
  const bool packs = options.format && *options.format != WeightFormat::float32;
  StoredModel model = read_model(in, packs ? Reading::inference : Reading::everything);

  Conversion result;
  result.from = model.form;
  result.from_format = model.format();
  const std::vector<StackTensor> before = model.tensors;
  const std::vector<std::optional<double>> errors = change_format(model, options.format);
  result.to_format = model.format();
  result.drops_training = packs && model.trainable;
  result.to = options.target == ConvertTarget::folder ? ModelForm::folder : file_form(model);
  if (options.codec != TensorCodec::none && result.to == ModelForm::samba_archive) result.to = ModelForm::stack_archive;

  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::string& name = before[i].name;
    const Weight& weight = model.weights.at(name);
    result.tensors.push_back({parameter_place(result.from, name, format_of(before[i].dtype)),
                              parameter_place(result.to, name, weight.format()), before[i].shape,
                              std::string(weight_format_name(weight.format())), errors[i]});
  }
  for (const std::string& name : moment_names(model)) {
    const Array& array = model.moments.at(name);
    result.tensors.push_back({moment_place(result.from, name), moment_place(result.to, name), array.shape(),
                              std::string(dtype_name(array.dtype())), std::nullopt});
  }
  if (options.dry_run) return result;
  if (result.to == ModelForm::folder) {
    write_model_folder(model, out);
  } else {
    write_model_file(model, out, options.codec);
  }
  return result;
}

}  // namespace samba
