// One form of a model into another (samba/convert/model_source.h says which forms there are). The weights may be
// rounded to a packed format, which is the one loss there can be; a model rounded so is for inference only.
//
// Tensors go through one at a time and in pieces: memory holds one of them at most, and the buffer it is written from.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "samba/convert/model_source.h"
#include "samba/core/files.h"

namespace samba {

enum class ConvertTarget { file, folder, gguf };

struct ConvertOptions {
  ConvertTarget target = ConvertTarget::file;
  std::optional<WeightFormat> format;     // absent: as the weights are
  TensorCodec codec = TensorCodec::none;  // of a samba.stack.v1 file
  std::string model_type;  // of a folder: the one of transformers that it shall be; "": the first that fits
  bool dry_run = false;
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  // tensors checked and tensors written
};

struct ConvertedTensor {
  std::string source;  // "model.safetensors/model.embed_tokens.weight"
  std::string target;  // "parameters/embed.weight"
  Shape shape;
  std::string dtype;                    // as it is written
  std::optional<double> largest_error;  // |written - read| of a weight whose format changed
};

struct Conversion {
  ModelForm from = ModelForm::folder;
  ModelForm to = ModelForm::folder;
  std::string from_dtypes;  // "float32", "bfloat16", "float16 and float32"
  WeightFormat to_format = WeightFormat::float32;
  bool drops_training = false;      // moments, optimizer, schedule and random stream were there and are left out
  std::string model_type;           // of a folder that transformers loads
  std::string no_model_type;        // why a folder is none
  std::vector<std::string> copied;  // names of the files that go with the model
  std::string no_tokenizer;         // why the source's tokenizer is not beside a samba file
  std::vector<std::string> made;    // names of those that are made of the metadata of a GGUF file
  std::string vocabulary;           // of a GGUF file: what its tokenizer was made of, or "none: " and why
  std::vector<ConvertedTensor> tensors;
};

// Everything is read, verified and rounded before anything is written, and what is written appears whole or not at all.
// Refusals of a source are those of open_model and of its tensors; Error(value): a target that cannot be written, a
// weight that becomes infinite by rounding (named), a model_type that cannot hold the model (with the reason).
Conversion convert_model(const ModelPlace& in, const Path& out, const ConvertOptions& options);

}  // namespace samba
