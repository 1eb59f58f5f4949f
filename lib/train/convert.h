// One form of a model into another (samba/train/stored_model.h). The weights may be rounded to a packed format, which
// is the one loss there can be; a model rounded so is for inference only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "samba/core/files.h"
#include "samba/train/stored_model.h"

namespace samba {

enum class ConvertTarget { file, folder };

struct ConvertOptions {
  ConvertTarget target = ConvertTarget::file;
  std::optional<WeightFormat> format;     // absent: as the weights are
  TensorCodec codec = TensorCodec::none;  // of a samba.stack.v1 file
  bool dry_run = false;
};

struct ConvertedTensor {
  std::string source;  // "parameters/embed.weight", "model.safetensors/embed.weight.bits"
  std::string target;
  Shape shape;
  std::string dtype;                    // as it is written
  std::optional<double> largest_error;  // |written - read| of a weight whose format changed
};

struct Conversion {
  ModelForm from = ModelForm::folder;
  ModelForm to = ModelForm::folder;
  WeightFormat from_format = WeightFormat::float32;
  WeightFormat to_format = WeightFormat::float32;
  bool drops_training = false;  // moments, optimizer, schedule and random stream were there and are left out
  std::vector<ConvertedTensor> tensors;
};

// Everything is read, verified and rounded before anything is written. Refusals of a damaged source are those of
// read_model; Error(value): a target that cannot be written, a weight that becomes infinite by rounding (named).
Conversion convert_model(const Path& in, const Path& out, const ConvertOptions& options);

}  // namespace samba
