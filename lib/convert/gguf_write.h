// A model as a GGUF file that llama.cpp loads (docs/formats/gguf.md).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "samba/convert/gguf_names.h"
#include "samba/convert/open_model.h"
#include "samba/formats/gguf_writer.h"

namespace samba {

struct GgufPlan {
  GgufArchitecture architecture = GgufArchitecture::llama;
  std::vector<GgufTensorPlace> places;  // in registry order
  std::vector<WeightFormat> formats;    // float32 or bfloat16: of matrices in the file's sense
  std::vector<float> rope_factors;      // of rope_freqs.weight; empty: there is none
  std::string vocabulary;               // what the tokenizer was made of, or "none: " and why
  GgufFields fields;
};

// `format`: the packed one of the model, or float32; `format_of`: that of a tensor. Error(value, unsupported) for a
// stack that no architecture computes exactly, with the reason of each, and for a format other than float32 and
// bfloat16.
GgufPlan plan_gguf(const OpenModel& model, WeightFormat format,
                   const std::function<WeightFormat(const ModelTensor&)>& format_of);

void write_gguf_model(const GgufPlan& plan, const OpenModel& model, const Path& path,
                      const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});

}  // namespace samba
